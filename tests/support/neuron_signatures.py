"""The signatures of AWS's interfaces that Outrider calls, of neuronx-distributed 0.18.

The stand-in in tests/support/fake_neuron.py must have exactly these, so that a call which binds
there binds to the real thing; tests/nxd compares them with a checkout. Defaults that are objects of
the SDK are written as None; annotations are left out.
"""

SIGNATURES = {
    "neuronx_distributed.NxDModel": (
        "(world_size, start_rank=None, local_ranks_size=None, "
        "state_initializer=None, layout_transformer=None)"
    ),
    "neuronx_distributed.NxDModel.add": "(self, key, trace_artifacts, compilation_artifacts)",
    "neuronx_distributed.trace.functions.trace": (
        "(model, args=None, kwargs=None, spmd=True, preserve_parameters=True, "
        "weights_to_skip_layout_optimization=None)"
    ),
    "neuronx_distributed.trace.functions.compile": (
        "(hlo_module, metaneff, compiler_workdir=None, compiler_args=None, key=None)"
    ),
    "neuronx_distributed.trace.functions.compile_wlo": (
        "(hlo_module, metaneff, compiler_workdir=None, compiler_args=None, key=None)"
    ),
    "neuronx_distributed.trace.functions.compile_layout_transformer": (
        "(wlo_artifacts, priority_model_weight_name_to_idx, compiler_workdir=None, "
        "logical_nc_config=1)"
    ),
    "neuronx_distributed.trace.hlo_utils.mark_weights_for_wlo": (
        "(trace_artifacts, weights_to_skip_layout_optimization=None)"
    ),
    "neuronx_distributed.trace.hlo_utils.apply_layout_transformation": (
        "(trace_artifacts, priority_model_trace_artifacts, wlo_artifacts, key=None)"
    ),
    "neuronx_distributed.trace.model_builder_utils.CompilationArtifacts": "(neff_filepath)",
    "neuronx_distributed.trace.model_builder_utils.WLOArtifacts": (
        "(neff_filepath, wrapped_neff_hlo_filepath=None)"
    ),
    "neuronx_distributed.trace.model_builder_utils.LayoutTransformerArtifacts": (
        "(hlo_filepath, neff_filepath, metaneff_filepath)"
    ),
    "neuronx_distributed.NxDModel.get_available_keys": "(self)",
    "neuronx_distributed.NxDModel.set_weights": "(self, sharded_checkpoint)",
    "neuronx_distributed.NxDModel.to_neuron": "(self)",
    "neuronx_distributed.NxDModel.replace_weights": "(self, sharded_checkpoint)",
    "neuronx_distributed.NxDModel.read_from_neuron_buffer": "(self, buffer_key, rank)",
    "neuronx_distributed.NxDModel.forward": (
        "(self, *args, model_name=None, forward_mode='default', **kwargs)"
    ),
    "neuronx_distributed.NxDModel.save": "(self, path_to_save, save_weights=False)",
    "neuronx_distributed.NxDModel.load": "(path_to_model, start_rank=None, local_ranks_size=None)",
    "neuronx_distributed.NxDParallelState": (
        "(world_size=1, rank=0, tensor_model_parallel_size=1, pipeline_model_parallel_size=1, "
        "context_parallel_size=1, expert_model_parallel_size=1, lnc_size=None)"
    ),
    "neuronx_distributed.shard_checkpoint": (
        "(checkpoint, model, start_rank=None, end_rank=None, "
        "load_on_device=False, serialize_path=None)"
    ),
    "neuronx_distributed.utils.model_utils.init_on_device": (
        "(device, include_buffers=False, force_custom_init_on_device=False)"
    ),
    "neuronx_distributed.parallel_layers.layers.ColumnParallelLinear": (
        "(input_size, output_size, bias=True, gather_output=True, dtype=torch.float32, "
        "device=None, stride=1, init_method=None, "
        "sequence_parallel_enabled=False, sequence_dimension=None, keep_master_weight=False, "
        "skip_bias_add=False, pad=False, pad_alignment_size_per_rank=1, keep_padded_output=False, "
        "tensor_model_parallel_group=None, reduce_dtype=torch.float32, rank_ordering=None)"
    ),
    "neuronx_distributed.parallel_layers.layers.RowParallelLinear": (
        "(input_size, output_size, bias=True, input_is_parallel=False, dtype=torch.float32, "
        "device=None, stride=1, init_method=None, "
        "sequence_parallel_enabled=False, sequence_dimension=None, keep_master_weight=False, "
        "skip_bias_add=False, pad=False, "
        "reduce_output=True, tensor_model_parallel_group=None, reduce_dtype=torch.float32, "
        "tile_cc=False, rank_ordering=None)"
    ),
    "neuronx_distributed.parallel_layers.layers.ParallelEmbedding": (
        "(num_embeddings, embedding_dim, padding_idx=None, max_norm=None, norm_type=2.0, "
        "scale_grad_by_freq=False, sparse=False, "
        "init_method=None, device=None, dtype=torch.float32, shard_across_embedding=False, "
        "pad=False, "
        "sequence_parallel_enabled=False, tensor_model_parallel_group=None, use_spmd_rank=False, "
        "sequence_dimension=None, tile_cc=False, rank_ordering=None, collect_output=True)"
    ),
    "neuronx_distributed.parallel_layers.mappings."
    "gather_from_tensor_model_parallel_region_with_dim": (
        "(input_, gather_dim, process_group=None)"
    ),
    "neuronx_distributed.parallel_layers.mappings.reduce_from_tensor_model_parallel_region": (
        "(input_, process_group=None)"
    ),
}
