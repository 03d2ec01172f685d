"""Of which parametrized tests a share runs in a plain run: one case in how many. The rest is marked as a sweep
(`scripts/test.sh --all`).

The cases are taken by a checksum of their names, so that a share holds cases of every parameter, and is the same on
every machine.
"""

from __future__ import annotations

import zlib
from collections import defaultdict

import pytest

ONE_IN: dict[str, int] = {
    "test_against_eager.py::test_checked_steps_are_the_same": 2,
    "test_amp.py::test_loss_curves_stay_with_autocast": 3,
    "test_cache.py::test_damaged_entries_are_compiled_anew": 2,
    "test_caches.py::test_a_cache_that_grows": 2,
    "test_checkpointing.py::test_memory_of_a_deep_model_grows_with_inputs_of_blocks": 2,
    "test_checkpointing.py::test_numbers_stay_the_same": 3,
    "test_checks.py::test_a_call_that_is_refused_changes_nothing": 2,
    "test_codegen_elementwise.py::test_every_op": 3,
    "test_codegen_elementwise.py::test_strides": 6,
    "test_codegen_random.py::test_random_regions": 2,
    "test_codegen_reductions.py::test_every_kind_over_every_subset": 4,
    "test_dynamo_sizes.py::test_views_that_are_results": 2,
    "test_engines.py::test_training_as_a_whole_step": 2,
    "test_epilogues.py::test_inference": 3,
    "test_error_inputs.py::test_a_few": 3,
    "test_errors.py::test_writes_of_another_kind": 2,
    "test_gflow_compile.py::test_what_no_program_holds_is_split": 3,
    "test_grad_scaler.py::test_steps_are_skipped_as_in_an_eager_loop": 3,
    "test_isolation.py::test_dynamo_that_is_first_used_while_a_graph_is_traced": 2,
    "test_join_reductions.py::test_backward_of_a_norm": 3,
    "test_join_reductions.py::test_tiles_of_a_product_sum_columns": 3,
    "test_merge_updates.py::test_updates_are_eagers": 2,
    "test_op_db.py::test_forward": 4,
    "test_op_db.py::test_gradient": 12,
    "test_op_db_references.py::test_a_few": 3,
    "test_optimizers.py::test_matches_eager": 3,
    "test_pieces.py::test_hooks_that_come_later": 2,
    "test_recognize_by_default.py::test_numbers_that_are_not_finite": 2,
    "test_reduce.py::test_planted_bugs_shrink_to_what_they_need": 3,
    "test_reduce.py::test_reductions_keep_modules_valid": 4,
    "test_refused_values.py::test_an_op_that_refuses_values": 5,
    "test_rematerialize.py::test_budgets_are_met": 2,
    "test_rematerialize.py::test_budgets_for_a_gpu": 3,
    "test_rematerialize.py::test_steps_are_the_same": 2,
    "test_returned_views.py::test_views_of_updated_arguments": 2,
    "test_sass.py::test_loops_are_not_slower": 2,
    "test_sharding.py::test_rule": 2,
    "test_special_values.py::test_like_eager": 3,
    "test_strides.py::test_training": 2,
    "test_third_party_optimizers.py::test_branches": 4,
    "test_transformers.py::test_dropout": 2,
    "test_transformers.py::test_inference": 2,
    "test_transformers.py::test_loop": 4,
    "test_transformers.py::test_training": 3,
    "test_triton_attention.py::test_numerics": 3,
    "test_triton_convolution.py::test_against_float64": 4,
    "test_triton_convolution.py::test_epilogues": 2,
    "test_triton_fused.py::test_every_kind": 3,
    "test_triton_fused.py::test_every_op": 2,
    "test_triton_models.py::test_trains_like_eager": 6,
    "test_triton_pooling.py::test_pooling": 2,
    "test_vmath.py::test_unary_float32_over_the_whole_range": 2,
    "test_zoo.py::test_like_eager": 12,
}


def mark_the_rest(items: list[pytest.Item]) -> None:
    """Mark the cases that are not in the share of their test."""
    found: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        name = item.nodeid.rpartition("tests/")[2].split("[")[0]
        if name in ONE_IN and item.get_closest_marker("sweep") is None:
            found[name].append(item)
    for name, cases in found.items():
        cases.sort(key=lambda item: zlib.crc32(item.name.encode()))
        for item in cases[-(-len(cases) // ONE_IN[name]) :]:
            item.add_marker(pytest.mark.sweep)
