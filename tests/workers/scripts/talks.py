"""A worker that prints without end."""

while True:
    print("and so on")
