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
    "test_against_eager.py::test_checked_steps_are_the_same": 4,
    "test_amp.py::test_float16_with_a_scaler_stays_with_float32": 2,
    "test_amp.py::test_loss_curves_stay_with_autocast": 6,
    "test_cache.py::test_damaged_entries_are_compiled_anew": 4,
    "test_caches.py::test_a_cache_that_grows": 4,
    "test_checkpointing.py::test_memory_of_a_deep_model_grows_with_inputs_of_blocks": 4,
    "test_checkpointing.py::test_numbers_stay_the_same": 6,
    "test_checks.py::test_a_call_that_is_refused_changes_nothing": 4,
    "test_codegen_elementwise.py::test_every_op": 3,
    "test_codegen_elementwise.py::test_strides": 10,
    "test_codegen_random.py::test_random_regions": 4,
    "test_codegen_reductions.py::test_every_kind_over_every_subset": 4,
    "test_codegen_reductions.py::test_shared_among_threads": 2,
    "test_codegen_reductions.py::test_softmax": 2,
    "test_codegen_reductions.py::test_strided_operands": 2,
    "test_distribution_passes.py::test_stages_give_the_same_bits": 2,
    "test_dynamo_sizes.py::test_sizes_not_seen_when_compiled": 2,
    "test_dynamo_sizes.py::test_views_that_are_results": 4,
    "test_engine_import.py::test_convolutions_of_jax": 2,
    "test_engines.py::test_inference": 2,
    "test_engines.py::test_training_as_a_whole_step": 4,
    "test_epilogue_places.py::test_both_ways_of_a_gradient": 2,
    "test_epilogues.py::test_inference": 6,
    "test_epilogues.py::test_training": 3,
    "test_error_inputs.py::test_a_few": 5,
    "test_errors.py::test_writes_of_another_kind": 4,
    "test_gflow_compile.py::test_what_no_program_holds_is_split": 5,
    "test_grad_scaler.py::test_steps_are_skipped_as_in_an_eager_loop": 5,
    "test_interrupts.py::test_a_compilation_that_fails": 2,
    "test_interrupts.py::test_later_calls_at_any_line": 2,
    "test_isolation.py::test_dynamo_that_is_first_used_while_a_graph_is_traced": 4,
    "test_join_reductions.py::test_backward_of_a_norm": 5,
    "test_join_reductions.py::test_tiles_of_a_product_sum_columns": 6,
    "test_merge_updates.py::test_updates_are_eagers": 4,
    "test_op_corners.py::test_matrices_of_any_strides": 2,
    "test_op_db.py::test_forward": 8,
    "test_op_db.py::test_gradient": 24,
    "test_op_db_references.py::test_a_few": 5,
    "test_opt_passes.py::test_simplify_keeps_results": 2,
    "test_optimizers.py::test_matches_eager": 5,
    "test_own_attention.py::test_like_the_interpreter": 2,
    "test_pieces.py::test_hooks_that_come_later": 2,
    "test_recognize_by_default.py::test_numbers_that_are_not_finite": 2,
    "test_reduce.py::test_planted_bugs_shrink_to_what_they_need": 3,
    "test_reduce.py::test_reductions_keep_modules_valid": 4,
    "test_refused_calls.py::test_computed_calls_pass_the_checks_under_torch_compile": 2,
    "test_refused_values.py::test_an_op_that_refuses_values": 10,
    "test_rematerialize.py::test_budgets_are_met": 4,
    "test_rematerialize.py::test_budgets_for_a_gpu": 3,
    "test_rematerialize.py::test_steps_are_the_same": 4,
    "test_returned_views.py::test_views_of_updated_arguments": 3,
    "test_sass.py::test_loops_are_not_slower": 4,
    "test_scalar_updates.py::test_updates_of_0d_tensors_stay": 2,
    "test_sharding.py::test_random_programs": 2,
    "test_sharding.py::test_rule": 4,
    "test_special_values.py::test_like_eager": 5,
    "test_strides.py::test_training": 2,
    "test_strides.py::test_updates_through_views": 2,
    "test_tails.py::test_relative_errors": 2,
    "test_third_party_optimizers.py::test_branches": 8,
    "test_training.py::test_schedule_matches_eager_over_30_steps": 2,
    "test_transformers.py::test_caches": 2,
    "test_transformers.py::test_dropout": 4,
    "test_transformers.py::test_gradients": 2,
    "test_transformers.py::test_inference": 4,
    "test_transformers.py::test_loop": 8,
    "test_transformers.py::test_masks": 2,
    "test_transformers.py::test_tied_weights_stay_tied": 2,
    "test_transformers.py::test_training": 5,
    "test_transformers.py::test_tuples_and_hidden_states": 2,
    "test_triton_attention.py::test_numerics": 5,
    "test_triton_convolution.py::test_against_float64": 6,
    "test_triton_convolution.py::test_epilogues": 2,
    "test_triton_fused.py::test_every_kind": 5,
    "test_triton_fused.py::test_every_op": 2,
    "test_triton_fused.py::test_random_numbers": 2,
    "test_triton_fused.py::test_shared_by_programs": 2,
    "test_triton_indexing.py::test_index_add": 2,
    "test_triton_matmul.py::test_random_epilogue": 2,
    "test_triton_models.py::test_trains_like_eager": 9,
    "test_triton_pooling.py::test_pooling": 2,
    "test_trust.py::test_every_place_lies_in_its_memory": 2,
    "test_two_sizes.py::test_training_steps": 2,
    "test_vmath.py::test_unary_float32_over_the_whole_range": 4,
    "test_zoo.py::test_like_eager": 24,
    "test_zoo.py::test_random_models": 2,
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
