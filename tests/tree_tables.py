"""Exceptions of tests/test_tree.py: modules that no command reaches, and modules whose test stands elsewhere."""

from __future__ import annotations

UNREACHED: dict[str, str] = {}
"""Modules that only tests import, with the reason why they are kept."""

UNTESTED = {
    "autotune/jobs/race.py": "`nox -s race -- quick` runs it in a lab",
}
"""Modules that no test runs, with what runs them."""

COVERS: dict[str, tuple[str, ...]] = {
    "autotune/runtime/embedding/test_model_tables.py": (
        "autotune/runtime/embedding/cached_tables.py",
        "autotune/runtime/embedding/exchange.py",
        "autotune/runtime/embedding/layout.py",
        "autotune/runtime/embedding/shard.py",
        "autotune/runtime/embedding/tables.py",
    ),
    "mpi/test_embedding_plans.py": ("autotune/runtime/train/embedding_trainer.py",),
    "accelerator/test_nccl.py": ("autotune/runtime/transport/accelerator_group.py",),
    "accelerator/test_streams.py": (
        "autotune/runtime/device/accelerator.py",
        "autotune/runtime/device/cpu.py",
        "autotune/runtime/transport/staged_group.py",
    ),
    "autotune/calibrate/test_fit_steps.py": (
        "autotune/calibrate/import_steps.py",
        "autotune/calibrate/step_model.py",
        "results/imports/step_rows.py",
    ),
    "autotune/cli/test_advise.py": (
        "autotune/cli/options.py",
        "autotune/cli/predict_options.py",
        "autotune/jobs/advise/changes.py",
        "autotune/jobs/advise/job.py",
        "results/show/advise_console.py",
    ),
    "mpi/test_advise.py": ("autotune/jobs/advise/measured.py",),
    "autotune/runtime/launch/test_launched_devices.py": ("autotune/runtime/device/devices.py",),
    "autotune/cli/test_init.py": ("results/text/cluster_text.py",),
    "autotune/simulate/test_stages.py": (
        "autotune/simulate/cost_tables.py",
        "autotune/simulate/link_sources.py",
    ),
    "autotune/cli/test_main.py": ("results/show/list_console.py",),
    "results/imports/test_readers.py": (
        "results/imports/formats.py",
        "results/imports/imported.py",
        "results/imports/layer_times.py",
        "results/imports/metis.py",
        "results/imports/pipedream.py",
        "results/imports/table.py",
    ),
    "workloads/graphs/test_graph_file.py": ("workloads/graphs/graph_cuts.py",),
    "autotune/cli/test_provision.py": (
        "autotune/cli/provision_options.py",
        "autotune/jobs/provision/job.py",
        "results/show/provision_console.py",
        "results/show/provision_html.py",
    ),
    "autotune/cli/test_rank_commands.py": (
        "autotune/cli/from_options.py",
        "autotune/cli/parser.py",
    ),
    "autotune/cli/test_schedule.py": ("results/show/schedule_console.py",),
    "autotune/jobs/test_ablation.py": ("results/judge/selection.py",),
    "autotune/jobs/test_predict.py": (
        "autotune/cli/predict.py",
        "autotune/jobs/planning/judge.py",
        "results/store/forecast.py",
    ),
    "autotune/jobs/test_profile.py": ("autotune/jobs/network_profile.py",),
    "autotune/online/pretrain/test_pretrain.py": (
        "autotune/online/pretrain/__main__.py",
        "autotune/online/pretrain/cases.py",
        "autotune/online/pretrain/grading.py",
    ),
    "autotune/online/pretrain/test_random_jobs.py": (
        "autotune/online/pretrain/random_clusters.py",
        "autotune/online/pretrain/random_models.py",
    ),
    "autotune/online/test_meta_network.py": ("autotune/online/learning.py",),
    "autotune/online/test_window.py": (
        "autotune/online/analytic_model.py",
        "autotune/online/features.py",
        "autotune/online/model_sizes.py",
        "autotune/online/priors.py",
        "autotune/online/simulated_steps.py",
    ),
    "autotune/placement/test_chain_cut.py": (
        "autotune/placement/chain_costs.py",
        "autotune/placement/chain_paths.py",
    ),
    "autotune/placement/test_pipeline_plans.py": (
        "autotune/runtime/placed/find_cuts.py",
        "autotune/space/pipeline_points.py",
    ),
    "autotune/provision/test_exact.py": (
        "autotune/provision/assignment.py",
        "autotune/provision/compiled.py",
        "autotune/provision/problem.py",
    ),
    "autotune/provision/test_methods.py": (
        "autotune/provision/answer.py",
        "autotune/provision/baselines.py",
        "autotune/provision/genetic.py",
        "autotune/provision/judge.py",
        "autotune/provision/policy.py",
    ),
    "autotune/placement/test_stage_search.py": (
        "autotune/placement/stage_moves.py",
        "autotune/placement/stage_seeds.py",
        "autotune/placement/stage_shape.py",
        "autotune/placement/stage_times.py",
    ),
    "mpi/test_left_out.py": ("autotune/runtime/trial/members.py",),
    "autotune/search/test_rank_sets.py": (
        "autotune/search/set_moves.py",
        "autotune/space/rank_sets.py",
    ),
    "autotune/runtime/codecs/test_protocol.py": (
        "autotune/runtime/codecs/error_feedback.py",
        "autotune/runtime/codecs/factory.py",
    ),
    "autotune/runtime/launch/test_launcher.py": ("autotune/runtime/launch/slurm.py",),
    "autotune/runtime/control/test_network.py": (
        "autotune/runtime/control/edge.py",
        "autotune/runtime/control/handshake.py",
        "autotune/runtime/control/listener.py",
        "autotune/runtime/control/open_network.py",
        "autotune/runtime/control/topic.py",
        "autotune/runtime/control/topic_table.py",
        "autotune/runtime/control/tree.py",
        "autotune/runtime/control/watcher.py",
        "autotune/runtime/control/wire.py",
    ),
    "autotune/runtime/data/test_batch_request.py": ("autotune/runtime/data/loader_parts.py",),
    "autotune/runtime/data/test_resplit.py": (
        "autotune/runtime/data/dealing.py",
        "autotune/runtime/data/prefetch.py",
        "autotune/runtime/data/sample_order.py",
    ),
    "autotune/runtime/data/test_script_data.py": (
        "autotune/runtime/data/epochs.py",
        "autotune/runtime/data/map_data.py",
    ),
    "autotune/runtime/placed/test_executor.py": (
        "autotune/runtime/placed/batch_cut.py",
        "autotune/runtime/placed/shards.py",
        "autotune/runtime/placed/vocabulary.py",
    ),
    "autotune/runtime/placed/test_faults.py": (
        "autotune/runtime/placed/mailbox.py",
        "autotune/runtime/placed/parts.py",
        "autotune/runtime/placed/routes.py",
        "autotune/runtime/placed/shared_gradients.py",
    ),
    "autotune/runtime/placed/test_placed_job.py": (
        "workloads/plan/op_groups.py",
        "workloads/tensor_graph/segment_modules.py",
        "workloads/tensor_graph/traced.py",
    ),
    "workloads/tensor_graph/test_passes.py": (
        "workloads/tensor_graph/operations.py",
        "workloads/tensor_graph/segments.py",
    ),
    "autotune/runtime/placed/test_plan_job.py": ("autotune/runtime/placed/plan_trainer.py",),
    "autotune/runtime/placed/test_trainer.py": (
        "autotune/runtime/emulate/block_pacer.py",
        "autotune/runtime/placed/pipeline_step.py",
        "autotune/runtime/placed/stages.py",
    ),
    "autotune/runtime/probe/test_link_probe.py": ("autotune/runtime/probe/timed_collectives.py",),
    "autotune/runtime/reduce/test_cross_step.py": (
        "autotune/runtime/reduce/buffer_optimizer.py",
        "autotune/runtime/reduce/fusion_buffer.py",
        "autotune/runtime/reduce/make_buffers.py",
        "autotune/runtime/reduce/passes.py",
    ),
    "autotune/runtime/reduce/test_kinds.py": ("autotune/runtime/reduce/scheduled.py",),
    "autotune/runtime/reduce/test_sender.py": ("autotune/runtime/control/ready.py",),
    "autotune/runtime/reduce/test_skipped.py": (
        "autotune/runtime/reduce/late_watch.py",
        "autotune/runtime/reduce/step_position.py",
    ),
    "autotune/runtime/train/test_loop.py": (
        "autotune/runtime/data/micro_batches.py",
        "autotune/runtime/reduce/bucketed.py",
        "autotune/runtime/reduce/ddp.py",
    ),
    "autotune/runtime/train/test_retuned_trainer.py": ("autotune/runtime/train/trainer.py",),
    "autotune/runtime/train/test_tracing.py": (
        "autotune/runtime/train/step.py",
        "autotune/runtime/train/trainer_protocol.py",
    ),
    "autotune/runtime/transport/test_group_cache.py": ("autotune/runtime/transport/groups.py",),
    "autotune/runtime/transport/test_hierarchical_group.py": ("autotune/runtime/transport/collective_groups.py",),
    "autotune/runtime/transport/test_shard_group.py": ("autotune/runtime/transport/traced_group.py",),
    "autotune/runtime/trial/test_device_memory.py": (
        "autotune/runtime/trial/interleaved.py",
        "autotune/runtime/trial/local_step.py",
    ),
    "autotune/schedule/test_period.py": (
        "autotune/schedule/greedy.py",
        "autotune/schedule/grid.py",
        "autotune/schedule/modulo.py",
        "autotune/schedule/solver.py",
    ),
    "autotune/schedule/test_portfolio.py": (
        "autotune/schedule/exact.py",
        "autotune/schedule/list_schedule.py",
        "autotune/schedule/memory.py",
    ),
    "autotune/schedule/test_search.py": (
        "autotune/schedule/answer.py",
        "autotune/schedule/bounds.py",
        "autotune/schedule/classic.py",
        "autotune/schedule/improve.py",
        "autotune/schedule/timing.py",
    ),
    "autotune/search/test_guided.py": ("autotune/search/rank_speeds.py",),
    "autotune/search/test_ranking.py": (
        "autotune/search/local_search.py",
        "autotune/search/residual.py",
    ),
    "autotune/search/test_tuner.py": (
        "autotune/search/baselines.py",
        "autotune/search/optuna_plain.py",
    ),
    "autotune/simulate/test_closed_forms.py": (
        "autotune/simulate/collectives.py",
        "autotune/simulate/data_parallel.py",
        "autotune/simulate/factors.py",
        "autotune/simulate/labelled.py",
        "autotune/simulate/layout.py",
        "autotune/simulate/pipeline.py",
        "autotune/simulate/simulator.py",
        "autotune/simulate/spans.py",
    ),
    "autotune/simulate/test_codecs.py": (
        "autotune/simulate/cost_tables.py",
        "autotune/simulate/messages.py",
    ),
    "autotune/simulate/test_engine.py": (
        "autotune/simulate/task_graph.py",
        "autotune/simulate/tasks.py",
    ),
    "autotune/space/test_space.py": (
        "autotune/space/comm_knobs.py",
        "autotune/space/compression_knobs.py",
        "autotune/space/knob.py",
        "autotune/space/split_points.py",
    ),
    "lab/test_lab.py": (
        "autotune/lab/actions.py",
        "autotune/lab/hosts.py",
        "autotune/lab/kernel.py",
        "autotune/lab/limits.py",
        "autotune/lab/manage.py",
    ),
    "mpi/test_api.py": ("autotune/api.py",),
    "mpi/test_bad_input.py": ("autotune/cli/on_ranks.py",),
    "mpi/test_exact_gradients.py": ("autotune/runtime/reduce/batch_weights.py",),
    "mpi/test_faults.py": (
        "autotune/runtime/control/mpi.py",
        "autotune/runtime/trial/outcome.py",
        "autotune/runtime/trial/workers.py",
    ),
    "mpi/test_launchers.py": ("autotune/runtime/control/start.py",),
    "mpi/test_online.py": (
        "autotune/jobs/online_job.py",
        "autotune/jobs/online_script.py",
        "autotune/runtime/train/retuned_script.py",
    ),
    "mpi/test_profile.py": ("autotune/jobs/device_profile.py",),
    "mpi/test_quality.py": (
        "autotune/jobs/quality.py",
        "autotune/runtime/reduce/local_sgd.py",
    ),
    "mpi/test_resume.py": ("autotune/jobs/study.py",),
    "mpi/test_self_test.py": (
        "autotune/jobs/self_test/failing_job.py",
        "autotune/jobs/self_test/self_test.py",
    ),
    "mpi/test_sweep.py": (
        "autotune/jobs/sweep.py",
        "autotune/search/optuna_predicted.py",
    ),
    "mpi/test_training_loops.py": (
        "autotune/jobs/script_job.py",
        "autotune/runtime/override.py",
        "autotune/runtime/reduce/sparse_rows.py",
        "autotune/runtime/tracked.py",
        "autotune/runtime/train/local_batch_norm.py",
        "autotune/runtime/train/script_ddp.py",
        "autotune/runtime/train/script_reducer.py",
        "autotune/runtime/train/script_start.py",
    ),
    "mpi/test_transports.py": (
        "autotune/runtime/transport/mpi_group.py",
        "autotune/runtime/transport/open_group.py",
        "autotune/runtime/transport/paced_group.py",
    ),
    "profilers/test_breakdown.py": ("profilers/activity.py",),
    "profilers/test_host.py": ("profilers/amd.py",),
    "profilers/test_perfetto.py": ("profilers/trace_events.py",),
    "profilers/test_torch_trace.py": ("profilers/ranges.py",),
    "results/judge/test_race.py": ("results/show/race_console.py",),
    "results/judge/test_report.py": (
        "results/judge/report_data.py",
        "results/judge/reuse.py",
        "results/judge/wording.py",
    ),
    "results/show/test_report_console.py": (
        "results/show/progress.py",
        "results/show/report_tables.py",
        "results/text/numbers.py",
    ),
    "results/show/test_training_console.py": ("results/judge/training.py",),
    "results/store/test_profile_file.py": (
        "results/store/fits.py",
        "results/store/profile.py",
    ),
    "test_additions.py": (
        "autotune/jobs/choices.py",
        "autotune/search/methods.py",
        "workloads/plan/choices.py",
    ),
    "workloads/models/test_models.py": (
        "workloads/models/base.py",
        "workloads/models/digits.py",
        "workloads/models/gpt.py",
        "workloads/models/mlp.py",
        "workloads/models/resnet.py",
        "workloads/models/text.py",
        "workloads/models/vgg.py",
    ),
    "workloads/plan/test_plan.py": (
        "workloads/plan/comm.py",
        "workloads/plan/compression.py",
    ),
    "workloads/plan/test_wire.py": ("workloads/plan/codecs.py",),
    "workloads/test_blocks.py": ("workloads/block_file.py",),
    "workloads/test_capture.py": ("workloads/graph.py",),
    "workloads/test_loop.py": ("workloads/workload.py",),
    "workloads/test_registry.py": ("workloads/errors.py",),
    "workloads/test_topology.py": ("workloads/wires.py",),
    "workloads/changes/test_scenario.py": ("workloads/changes/scenario_file.py",),
}
"""Tests that cover modules without a test at the mirrored path: by test, below tests/."""
COVERED_BY = {module: test for test, modules in COVERS.items() for module in modules}
