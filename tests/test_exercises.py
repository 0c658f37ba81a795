"""What a cell tells a reader about an answer: right, wrong for a usual reason, or no number at all."""

import pytest

from scalebook.exercises import check


@pytest.mark.parametrize("answer", ["many", [1], True, False])
def test_an_answer_that_is_no_number_is_refused(answer):
    with pytest.raises(ValueError, match="must be a number"):
        check(answer, 1)


def test_the_usual_wrong_answer_gets_its_reason(capsys):
    check(0.25, 0.5, [(0.25, "you divided twice")])
    assert capsys.readouterr().out == "Not quite: you divided twice.\n"
