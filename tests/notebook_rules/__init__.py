"""The rules of a chapter, each a function from a notebook to the list of its offences (empty: it keeps the rule).

`RULES` holds them all. What a rule needs beside the notebook, the chapter's name, comes as its second argument.
"""

from tests.notebook_rules import outputs, predictions, sources, structure

RULES = [
    # what is stored
    outputs.stores_nothing_that_changes,
    outputs.stores_no_stderr_and_no_error,
    outputs.prints_at_most_four_digits,
    outputs.stores_no_widget_state,
    outputs.is_executed_in_order,
    outputs.metadata_is_normalised,
    outputs.images_have_alt_text,
    # what the cells say
    sources.no_cell_ends_with_semicolon,
    sources.ids_are_stable_names,
    sources.no_process_tricks,
    sources.no_internals_of_other_libraries,
    sources.no_text_that_differs_between_pythons,
    sources.setup_installs_nothing_importable,
    sources.widgets_are_plain,
    sources.interact_is_never_the_only_view,
    sources.comments_speak_of_the_book_alone,
    sources.ignored_outputs_are_measured,
    sources.listings_are_short,
    # how the chapter is built
    structure.sections_stand_in_order,
    structure.explorers_have_prediction_and_notice,
    predictions.explorers_have_a_prediction,
    predictions.predictions_are_computed_and_hidden,
    structure.exercises_have_solutions,
    structure.code_is_not_nested,
    structure.derivation_and_validation_assert,
]
