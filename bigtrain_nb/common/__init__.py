"""What every package uses: TensorFlow without its noise, checks of settings, words for numbers, cards, the machine."""
