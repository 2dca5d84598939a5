"""What several test files need, once each.

Targets by hand
    exact: on an engine, with a clock; its choice is a hash of what a node sees
    scripted_models, stepped: drafts for it, and proposers event by event
    wire_fixtures: over gRPC; it counts upwards
    observed: its padding can be computed by hand, and events are heard

Tiny real models
    models: checkpoints of each family
    gguf_files: the same weights for llama.cpp
    pairs, drafts: random targets, and drafts that nearly agree
    heads: EAGLE-3 heads, and what such a head computes
    fused_models, fused_cases, buckets: graphs, and inputs for them
    artifacts, neuron_artifacts, native_targets: built ones
    backends: one on every backend
    adjustments: what a rule may say of its logits

Oracles
    growths: random trees under construction
    equality: a text against the target's own decoding
    row_independence: a node against its neighbours
    copied_rows: a copied row against a prefilled one

Stand-ins
    clock: time
    fake_neuron, fake_nxd, fake_ranks, neuron_signatures: AWS's packages on the CPU
    fake_compiler: the neuronx-cc command
    strict_torch_neuron: the compiler of native PyTorch on trn2 and trn3
    fake_tnx: transformers-neuronx
    fake_llama_cpp: llama.cpp's cells and sequences, by hand
    fake_recorder: CUDA's recordings
    fleets: on Ray Serve, by the real command line
    terminal: a screen without anybody before it
    scratch_host, host_files: a host to set up, its systemd units, its Dockerfile
    aws_server: AWS itself, by moto in a process of its own

Peers and files that mean no good
    hostile, mutator: callers
    hand_streams: a stream message by message
    rogue_target: a target
    corruption: JSON files
    refusals: errors of one line

Commands
    commands: the command line in this process

Pages
    flags_page: docs/flags.md
"""
