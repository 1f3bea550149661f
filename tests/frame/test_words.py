"""The field's words are used: others may only become rarer, and each notebook names its subject's terms."""

import pytest
import words

SETTINGS = words.settings()


@pytest.mark.parametrize("word", SETTINGS["word"], ids=lambda word: word["use"])
def test_a_word_of_our_own_occurs_no_more_often_than_before(word):
    for area, counts in words.found(word).items():
        most = word["at_most"].get(area, 0)
        where = [f"{path}: {count}" for path, count in sorted(counts.items()) if count]
        told = f"{word['pattern']} in {area}: {counts.total()} times, allowed are {most}. Say: {word['use']}. {where}"
        assert counts.total() <= most, told


def test_each_notebook_has_the_terms_that_a_reader_would_search_for():
    not_yet = SETTINGS["not_yet"]
    for number, terms in words.missing(SETTINGS["required"]).items():
        assert set(terms) <= set(not_yet.get(number, [])), f"{number} must have {terms}"
