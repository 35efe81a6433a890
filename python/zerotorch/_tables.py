"""DeepSpeed's tree of modules where no file of that name has a part of it; `_modules` reads and serves this table.

Rows are, with a continuation where a line begins with a space, and names of modules without the package's own ("."
is `zerotorch` itself):

    module = other              it is another module, under a second name
    module < other: members     programs find members of another one in it; none: the module is there
    [feature] remedy            what follows is not built; what to do instead
    module: names               classes, which begin with a capital, and functions that raise when they are used
"""

TABLE = """
. < accelerator: get_accelerator
. < core.distributed: init_distributed
. < core.engine: Engine backward
. < core.log: log_dist logger
. < core.parameters.deferred_init: deferred_init
. < core.plan: Plan plan
. < env_report: __git_branch__ __git_hash__ __version_major__ __version_minor__ __version_patch__ version
. < errors: CheckpointError CommError ConfigError DeepSpeedConfigError ModelError NotBuiltError UsageError ZeroError
. < inference: DeepSpeedInferenceConfig InferenceEngine init_inference
. < module_inject: replace_transformer_layer set_autotp_mode tp_model_init
. < ops.transformer: DeepSpeedTransformerConfig DeepSpeedTransformerLayer
. < runtime.base_optimizer: DeepSpeedOptimizer ZeROOptimizer
. < runtime.config: DeepSpeedConfig add_config_arguments
. < runtime.engine: DeepSpeedEngine initialize
. < runtime.lr_schedules: add_tuning_arguments
. < runtime.pipe: PipelineModule
. < runtime.pipe.engine: PipelineEngine
. < utils.helpers: OnDevice
accelerator.cpu_accelerator = accelerator
accelerator.cuda_accelerator = accelerator
accelerator.real_accelerator = accelerator
arguments < runtime.config: add_config_arguments
checkpoint.constants = checkpoint
checkpoint.universal_checkpoint < checkpoint: SubparamShape enable_universal_checkpoint
checkpoint.utils < checkpoint: clone_tensors_for_torch_save
checkpointing < runtime.activation_checkpointing.checkpointing: CudaRNGStatesTracker _CUDA_RNG_STATE_TRACKER
  _set_cuda_rng_state checkpoint configure get_cuda_rng_tracker is_configured model_parallel_cuda_manual_seed
  non_reentrant_checkpoint partition_activations_in_checkpoint reset set_num_layers
comm.comm = comm
comm.torch < comm: TorchBackend
compression <
compression.helper < utils.helpers: convert_conv1d_to_linear recursive_getattr recursive_setattr
config = runtime.config
constants = runtime.constants
distributed = core.distributed
engine = runtime.engine
git_version_info = env_report
integrations <
launcher <
local_rank < core.local_rank: LocalRank
moe <
moe.utils < utils.helpers: has_moe_layers is_moe_param is_moe_param_group
  split_params_into_different_moe_groups_for_optimizer
monitor <
monitor.comet < monitor.monitor: CometMonitor
monitor.config < runtime.sections: CSVConfig CometConfig DeepSpeedMonitorConfig TensorBoardConfig WandbConfig
  get_monitor_config
monitor.csv_monitor < monitor.monitor: csvMonitor
monitor.tensorboard < monitor.monitor: TensorBoardMonitor
monitor.wandb < monitor.monitor: WandbMonitor
ops < ops.op_builder: __compatible_ops__
ops < ops.transformer: DeepSpeedTransformerConfig DeepSpeedTransformerLayer
ops.adagrad < ops.optimizers: DeepSpeedCPUAdagrad
ops.adagrad.cpu_adagrad < ops.optimizers: DeepSpeedCPUAdagrad
ops.adam < ops.optimizers: DeepSpeedCPUAdam FusedAdam
ops.adam.adam < ops.optimizers: DeepSpeedCPUAdam FusedAdam
ops.adam.cpu_adam < ops.optimizers: DeepSpeedCPUAdam
ops.adam.fused_adam < ops.optimizers: FusedAdam
ops.ademamix < ops.optimizers: AdEMAMix
ops.aio < ops.op_builder: AsyncIOBuilder
ops.lamb < ops.optimizers: FusedLamb
ops.lamb.fused_lamb < ops.optimizers: FusedLamb
ops.lion < ops.optimizers: DeepSpeedCPULion FusedLion
ops.lion.cpu_lion < ops.optimizers: DeepSpeedCPULion
ops.lion.fused_lion < ops.optimizers: FusedLion
ops.lion.lion < ops.optimizers: DeepSpeedCPULion FusedLion
ops.op_builder.all_ops < ops.op_builder: ALL_OPS
ops.op_builder.builder < ops.op_builder: CUDAOpBuilder OpBuilder
optimizer = core.optimizer
profiling <
profiling.flops_profiler < profiling.flops_profiler.profiler: FlopsProfiler get_model_profile
runtime <
runtime.activation_checkpointing <
runtime.bf16_optimizer < runtime.base_optimizer: BF16_Optimizer
runtime.checkpoint_engine <
runtime.checkpoint_engine.torch_checkpoint_engine < utils.helpers: TorchCheckpointEngine
runtime.config_utils < runtime.sections: DeepSpeedConfigModel get_scalar_param
runtime.data_pipeline <
runtime.fp16 <
runtime.fp16.fused_optimizer < runtime.base_optimizer: FP16_Optimizer
runtime.fp16.unfused_optimizer < runtime.base_optimizer: FP16_UnfusedOptimizer
runtime.precision_config < runtime.sections: BFLOAT16 BFLOAT16_OLD DeepSpeedBF16Config DeepSpeedFP16Config FP16
  get_bfloat16_config get_float16_config
runtime.torch_autocast < utils.helpers: LOWER_PRECISION_SAFE_MODULES PARAM_COMM_DTYPE_ATTR_NAME get_comm_dtype
  get_default_autocast_lower_precision_modules has_comm_dtype
runtime.zero < runtime.zero.memory_estimates: estimate_zero2_model_states_mem_needs
  estimate_zero2_model_states_mem_needs_all_cold estimate_zero2_model_states_mem_needs_all_live
  estimate_zero3_model_states_mem_needs estimate_zero3_model_states_mem_needs_all_cold
  estimate_zero3_model_states_mem_needs_all_live
runtime.zero < runtime.zero.partition_parameters: ZeroParamStatus ZeroParamType unwrap_model_for_generation
runtime.zero < zero: GatheredParameters Init register_external_parameter unregister_external_parameter
runtime.zero.config < runtime.sections: DeepSpeedZeroConfig DeepSpeedZeroLeafModuleConfig
  DeepSpeedZeroOffloadOptimizerConfig DeepSpeedZeroOffloadParamConfig OffloadDeviceEnum OffloadStateTypeEnum
  ZeroStageEnum get_zero_config
runtime.zero.leaf_module_config < runtime.sections: DEFAULT_LEAF_MODULE_CLASSES DEFAULT_LEAF_MODULE_NAMES
  DEFAULT_LEAF_MODULE_NAME_SUFFIXES DeepSpeedZeroLeafModuleConfig
runtime.zero.offload_config < runtime.sections: DeepSpeedZeroOffloadOptimizerConfig DeepSpeedZeroOffloadParamConfig
  OffloadDeviceEnum OffloadStateTypeEnum
runtime.zero.offload_states < utils.helpers: get_state_devices
runtime.zero.partition_parameters < zero: Init register_external_parameter unregister_external_parameter
runtime.zero.stage3 < runtime.base_optimizer: DeepSpeedZeroOptimizer_Stage3
runtime.zero.stage3 < runtime.zero.memory_estimates: estimate_zero3_model_states_mem_needs
  estimate_zero3_model_states_mem_needs_all_cold estimate_zero3_model_states_mem_needs_all_live
runtime.zero.stage3 < runtime.zero.partition_parameters: unwrap_model_for_generation
runtime.zero.stage_1_and_2 < runtime.base_optimizer: DeepSpeedZeroOptimizer
runtime.zero.stage_1_and_2 < runtime.zero.memory_estimates: estimate_zero2_model_states_mem_needs
  estimate_zero2_model_states_mem_needs_all_cold estimate_zero2_model_states_mem_needs_all_live
utils < comm: is_initialized
utils < runtime.dataloader: RepeatingLoader
utils < utils.groups: get_data_parallel_group get_data_parallel_rank get_data_parallel_world_size
  get_model_parallel_group get_model_parallel_rank get_model_parallel_world_size
utils < utils.helpers: OnDevice instrument_w_nvtx
utils < utils.leaf_modules: get_z3_leaf_modules set_z3_leaf_module set_z3_leaf_modules set_z3_leaf_modules_by_name
  set_z3_leaf_modules_by_suffix unset_z3_leaf_modules z3_leaf_module z3_leaf_parameter
utils.comms_logging < utils.helpers: calc_bw_log convert_size
utils.init_on_device < utils.helpers: OnDevice
utils.logging < core.log: LEVELS get_current_level log_dist log_dist_once logger print_dist set_log_level_from_string
  should_log_le warning_once
utils.module_utils < utils.helpers: recursive_getattr recursive_setattr
utils.numa < utils.helpers: get_numa_cores parse_range parse_range_list
utils.nvtx < utils.helpers: DEEPSPEED_NVTX_DOMAIN enable_nvtx instrument_w_nvtx
utils.tensor_fragment = utils
utils.torch < utils.helpers: jit_script_compat register_grad_hook required_torch_version
utils.types < utils.helpers: ActivationFuncType GATED_ACTIVATION_TYPES NormType
utils.z3_leaf_module = utils.leaf_modules

[autotuning] `zero plan` computes the memory of a configuration
autotuning: Autotuner
autotuning.autotuner: Autotuner
autotuning.config: DeepSpeedAutotuningConfig
autotuning.scheduler: ResourceManager
autotuning.utils: get_val_by_key set_val_by_key

[compression]
compression.basic_layer: ColumnParallelLinear_Compress Embedding_Compress LinearLayer_Compress
  RowParallelLinear_Compress
compression.compress: init_compression redundancy_clean student_initialization
compression.scheduler: compression_scheduler

[data efficiency] sample and order data in the program's data loader
runtime.data_pipeline.config: get_data_efficiency_config
runtime.data_pipeline.data_routing.basic_layer: RandomLayerTokenDrop
runtime.data_pipeline.data_routing.helper: convert_to_random_ltd remove_random_ltd_state_dict save_without_random_ltd
runtime.data_pipeline.data_routing.scheduler: RandomLTDScheduler
runtime.data_pipeline.data_sampling.data_analyzer: DataAnalyzer DistributedDataAnalyzer
runtime.data_pipeline.data_sampling.data_sampler: DeepSpeedDataSampler
runtime.data_pipeline.data_sampling.indexed_dataset: MMapIndexedDataset MMapIndexedDatasetBuilder make_builder
  make_dataset
runtime.data_pipeline.data_sampling.variable_batch_size_and_lr: VariableBatchSizeLR batch_by_seqlens
  dataloader_for_variable_batch_size get_dataloader_and_lr_scheduler_for_variable_batch_size_deepspeed
  lr_scheduler_for_variable_batch_size

[DeepCompile] engine.compile() runs torch.compile
compile:
compile.backend: init_schedule launch_compile_passes
compile.config: CompileConfig
compile.custom_ops.sp_dp_registry: get_group populate_registry
compile.custom_ops.tp_collectives: gather_from_tp_region
compile.fx: add_end_backward find_node_by_name get_node_shape_meta get_output_node replace_reduce_outputs_with_none
compile.inductor: patch_create_aot_dispatcher_function register_custom_ops
compile.init_tp: init_tp
compile.init_z1: init_z1
compile.init_z3: init_z3
compile.input_storage: InputStorage
compile.list_schedule: fast_free_schedule
compile.partitioner: get_wrapped_partitioner
compile.passes:
compile.passes.contract: PassContract PassContractError get_pass_contract register_pass_contract validate_schedule
compile.passes.offload_activation: get_offload_activation_stats offload_activation offload_activation_floor
  register_activation_offload_ops reset_offload_activation_stats
compile.passes.offload_adam_states: get_offload_op_stats move_opt_states move_opt_states_sync
  offload_adam_states_for_init offload_opt_states_inc register_offload_ops reset_offload_op_stats
compile.passes.offload_parameters: offload_parameter_fwd
compile.passes.prefetch: schedule_prefetch
compile.passes.selective_gather: selective_gather
compile.passes.sp_compile: prepare_autosp_inputs
compile.passes.tp_compile: defer_collectives_to_compiler
compile.passes.zero1_compile: add_z1_reduce
compile.passes.zero3_compile: add_z3_gather_release
compile.passes.zero_1_and_2_compile: add_z1_reduce add_z2_reduce
compile.patch_compiled_func: clear_backward_inputs get_backward_inputs patch_compiled_func pop_backward_input
  register_backward_frame unpatch_compiled_func
compile.profilers: ProfilingResult
compile.profilers.graph_profile: MemoryProfilingInterpreter ProfileAborted ProfilingInterpreter is_profile_incomplete
compile.util: create_shard_offsets create_symbolic_slice_indices get_deepcompile_handle get_input_id_node
  get_label_id_node get_last_uses get_position_id_node get_real_uses get_sdpa_nodes is_deepcompile_supported
  shard_tensor_node
compile.z3_eager_fallback: DeepCompileZ3EagerFallback deepcompile_z3_forward_context get_active_z3_eager_fallback
  is_dynamo_guard_evaluation

[hooks of stage 3] there are none: uses of parameters are seen by torch's dispatcher
runtime.zero.parameter_offload: DeepSpeedZeRoOffload ZeROOrderedDict ensure_zero_ordered_dict
runtime.zero.partition_parameters: AllGatherHandle InsertPostInitMethodToModuleSubClasses MultipleAllGatherHandles
runtime.zero.partitioned_param_coordinator: PartitionedParameterCoordinator
runtime.zero.stage_1_and_2: IPGBucket
runtime.utils: OutputBackwardHookManager count_used_parameters_in_backward register_output_backward_hooks

[a logger of the program's own collectives] zerotorch.comm.log_summary() has the engine's
utils.comms_logging: CommsLogger

[offload of saved activations by contexts] set zerotorch.offload_activations
runtime.activation_checkpointing.offload_activations: CheckpointHiddenStatesOffload
  get_checkpoint_hidden_states_offloading_ctx_manager

[a Domino transformer]
runtime.domino.transformer: DominoTransformer DominoTransformerLayer

[elastic training] set train_batch_size, and load a checkpoint with any number of ranks
elasticity: DSElasticAgent compute_elastic_config elasticity_enabled ensure_immutable_elastic_config
elasticity.config: ElasticityConfig ElasticityConfigError ElasticityError ElasticityIncompatibleWorldSize
elasticity.elasticity: compute_elastic_config

[an eigenvalue estimate]
runtime.eigenvalue: Eigenvalue

[evoformer attention] use torch.nn.functional.scaled_dot_product_attention
ops.deepspeed4science: DS4Sci_EvoformerAttention

[expert parallelism] a model whose experts are modules of its own trains as it is
checkpoint.autoep_universal: consolidate_autoep_expert_files consolidate_autoep_zero12_expert_states
  make_folding_metadata validate_folding_metadata
module_inject.auto_ep: AutoEP
module_inject.auto_ep_config: AutoEPConfig MoELayerSpec fill_autoep_config_from_hf parse_autoep_config
  validate_autoep_config validate_autoep_post_detection
module_inject.auto_ep_folding: FoldingGroupHandles FoldingGroupTables ParallelFoldingSpec assert_group_matches_spec
  autoep_folding_gradient_reduction_strategy build_folding_spec expected_folding_group_tables local_folding_ranks
  mark_autoep_folding_partial_router_parameter mark_autoep_folding_router_parameter
  mark_autoep_folding_sp_sharded_layernorm_parameter
module_inject.auto_ep_layer: AutoEPMoELayer SplitPlan apply_scores_before_experts_if_enabled combine_from_routed
  compute_split_plan compute_split_plan_from_expert_indices resolve_score_apply_mode
module_inject.auto_ep_preset_adapters: get_preset_adapter
module_inject.auto_ep_presets:
module_inject.auto_ep_presets.base:
module_inject.auto_ep_presets.registry: preset_name_for_hf_model_type unsupported_preset_for_hf_model_type
moe.ep_count:
moe.ep_experts: GroupedExperts
moe.ep_kernels:
moe.ep_repack: repack_expert_weights
moe.ep_router: TokenChoiceTopKRouter
moe.ep_tp_dispatch: RoutedAssignmentPayload assert_tp_payload_consistent assignment_ordinals_by_expert
  dispatch_counters partition_assignments restore_combined
moe.experts: Experts
moe.fused_expert_layout: classify_fused_gate_up_layout
moe.layer: MoE
moe.mappings: drop_tokens gather_tokens
moe.sharded_moe: MOELayer TopKGate top1gating top2gating topkgating

[a fast file writer] engine.save_checkpoint() writes in parallel by itself
io: FastFileWriter FastFileWriterConfig MockFileWriter PyFileWriter

[a fused transformer layer]
ops.transformer: DeepSpeedTransformerConfig DeepSpeedTransformerLayer

[a hybrid engine] generate with the engine's module, or with an inference server
runtime.hybrid_engine: DeepSpeedHybridEngine
runtime.hybrid_engine_graph: DecodeGraphCache decode_steps_from_generate_kwargs validate_cuda_graph_support
runtime.rollout: RolloutBatch RolloutEngine RolloutRequest SamplingConfig build_rollout
runtime.rollout.base: RolloutConfig RolloutEngine
runtime.rollout.hybrid_engine_rollout: HybridEngineRollout HybridEngineRolloutConfig

[an inference engine] engine.module generates; engine.save_16bit_model() and save_full_weights() write files for a server
inference: DeepSpeedInferenceConfig DeepSpeedTPConfig InferenceEngine RaggedInferenceEngineConfig
  build_engine_from_ds_checkpoint build_hf_engine init_inference
inference.config: DeepSpeedInferenceConfig DeepSpeedMoEConfig DeepSpeedTPConfig
inference.engine: InferenceEngine init_inference
inference.quantization:
inference.quantization.layers: QuantizedLinear
inference.quantization.quantization:
inference.quantization.utils: DeQuantizer Quantizer
inference.v2: InferenceEngineV2 RaggedInferenceEngineConfig build_hf_engine
inference.v2.allocator: on_device
inference.v2.engine_v2: InferenceEngineV2
inference.v2.inference_parameter: InferenceParameter
inference.v2.inference_utils: ActivationType DtypeEnum is_gated
inference.v2.kernels.core_ops: BlasLibLinear CUDABiasActivation CUDAFPPostLN CUDAFPPreLN CUDAGatedActivation
  CUDARMSNorm CUDARMSPreNorm
inference.v2.kernels.cutlass_ops: MoEGEMM
inference.v2.kernels.ragged_ops: AtomBuilder BlockedFlashAttn BlockedRotaryEmbeddings BlockedTrainedRotaryEmbeddings
  LinearBlockedKVCopy MoEGather MoEScatter RaggedEmbeddingKernel RaggedLogitsGather RaggedTopKGating get_kv_block_size
  get_q_block_size
inference.v2.model_implementations.common_parameters:
inference.v2.model_implementations.exaone4_5.model: Exaone4InferenceModel Exaone4_5InferenceModel
inference.v2.model_implementations.flat_model_helpers: flatten_inference_model restore_inference_model
inference.v2.model_implementations.layer_container_base: LayerContainer
inference.v2.model_implementations.parameter_base: ParamList ParameterBase ParametrizedList
inference.v2.model_implementations.sharding:
inference.v2.modules: ConfigBundle
inference.v2.modules.configs: DSLinearConfig DSMoEConfig DSNormConfig DSSelfAttentionConfig PositionalEmbeddingType
  RotateHalfConfig
inference.v2.modules.implementations:
inference.v2.modules.implementations.linear.quantized_linear: fp_quantize
inference.v2.modules.implementations.post_norm.cuda_post_ln:
inference.v2.modules.interfaces: DSLinearRegistry DSMoERegistry DSPostNormRegistry DSPreNormRegistry
  DSSelfAttentionBase DSSelfAttentionRegistry
inference.v2.ragged: AllocationMode DSSequenceDescriptor DSStateManager DSStateManagerConfig KVCacheConfig MemoryConfig
  PlaceholderSequenceDescriptor RaggedBatchWrapper split_kv
inference.v2.ragged.blocked_allocator: BlockedAllocator
model_implementations: DeepSpeedTransformerInference
ops.transformer: DeepSpeedInferenceConfig DeepSpeedMoEInference DeepSpeedTransformerInference
ops.transformer.inference: DeepSpeedInferenceConfig DeepSpeedMoEInference DeepSpeedTransformerInference
ops.transformer.inference.bias_add: nhwc_bias_add
ops.transformer.inference.config: DeepSpeedInferenceConfig
ops.transformer.inference.op_binding: ResidualAddOp
ops.transformer.inference.op_binding.bias_add: BiasAddOp
ops.transformer.inference.op_binding.bias_gelu: BiasGeluOp
ops.transformer.inference.op_binding.bias_relu: BiasReluOp
ops.transformer.inference.op_binding.gated_activation: GatedActivationOp
ops.transformer.inference.op_binding.layer_norm: LayerNormOp
ops.transformer.inference.op_binding.moe_res_matmul: MoEResMatmulOp
ops.transformer.inference.op_binding.pre_rms_norm: PreRMSNormOp
ops.transformer.inference.op_binding.rms_norm: RMSNormOp
ops.transformer.inference.triton: layer_norm layer_norm_residual matmul_4d softmax
runtime.state_dict_factory: MegatronSDLoader SDLoaderBase SDLoaderFactory

[linear layers of stage 3] torch.nn.Linear is memory-efficient by itself: parameters are gathered by use
runtime.zero.linear: LinearFunctionForZeroStage3 LinearModuleForZeroStage3 zero3_linear_wrap

[a launcher of several hosts] start the ranks with zero launch --hostfile, torchrun, mpirun or srun
launcher.multinode_runner: IMPIRunner MPICHRunner MVAPICHRunner MultiNodeRunner OpenMPIRunner PDSHRunner SlurmRunner

[LoRA of DeepSpeed's own] use peft, or freeze parameters and train others
linear: Init LoRAConfig OptimizedLinear QuantizationConfig init_lora
linear.config: LoRAConfig QuantizationConfig
linear.context_manager: Init init_lora
linear.optimized_linear: LoRAOptimizedLinear OptimizedLinear
linear.quantization: QuantizedLinear QuantizedParameter

[an optimizer with compressed communication] take Adam or LAMB
runtime.comm.coalesced_collectives: all_to_all_loco_quant_reduce all_to_all_quant_reduce reduce_scatter_coalesced
runtime.comm.compressed: CompressedBackend
runtime.comm.mpi: MpiBackend
runtime.comm.nccl: NcclBackend
runtime.fp16.onebit: OnebitAdam OnebitLamb ZeroOneAdam
runtime.fp16.onebit.adam: OnebitAdam
runtime.fp16.onebit.lamb: OnebitLamb
runtime.fp16.onebit.zoadam: ZeroOneAdam

[an optimizer of its own for Muon] name Muon in the configuration
runtime.zero.muon.muon_optimizer: MuonWithAuxAdam
runtime.zero.muon.original_muon: muon_update

[pinned memory of DeepSpeed's own] use tensor.pin_memory()
utils.pin_memory: NativePinnedMemory get_active_native_pinned_memory
utils.pin_memory_tracker: pinned_memory_summary track_pinned_memory

[pipeline parallelism]
pipe: LayerSpec PipelineModule TiedLayerSpec
runtime.pipe: LayerSpec PipelineModule ProcessTopology TiedLayerSpec
runtime.pipe.engine: DeepSpeedEngine PipelineEngine
runtime.pipe.module: LayerSpec PipelineModule TiedLayerSpec
runtime.pipe.schedule: BackwardPass BufferOpInstruction DataParallelSchedule ForwardPass InferenceSchedule
  LoadMicroBatch OptimizerStep PipeInstruction PipeSchedule RecvActivation RecvGrad ReduceGrads ReduceTiedGrads
  SendActivation SendGrad TrainSchedule
runtime.pipe.topology: PipeDataParallelTopology PipeModelDataParallelTopology PipelineParallelGrid ProcessTopology

[quantization]
ops.fp_quantizer: FP_Quantize Quantizer matmul_fp8
ops.quantizer: ds_quantizer
runtime.quantize: Quantizer
runtime.weight_quantizer: WeightQuantization
runtime.zero.partition_parameters: CUDAQuantizer

[selective Adam (ZenFlow)] take AdamW
ops.adam: ZenFlowCPUAdam ZenFlowSelectiveAdamW ZenFlowSelectiveAdamW_stage3
runtime.zenflow.zenflow_config: ZenFlowConfig
runtime.zenflow.zenflow_utils:

[sequence parallelism]
runtime.sequence_parallel.parallel_state_sp: initialize_sequence_parallel
runtime.sequence_parallel.ulysses_sp: SequenceTiledCompute TiledFusedLogitsLoss TiledMLP UlyssesSPAttentionHF
  UlyssesSPDataLoaderAdapter sequence_tiled_compute
sequence:
sequence.auto_sp: auto_wrap_model_for_sp
sequence.autosp_fusion: InternVLFusionAdapter LlavaFusionAdapter Qwen2VLFusionAdapter
sequence.autosp_vit: UlyssesSPViTAttention
sequence.cross_entropy: vocab_sequence_parallel_cross_entropy
sequence.fpdt_layer: FPDT_Attention FPDT_FFN FPDT_InputConstruct FPDT_LogitsLoss
sequence.layer: DistributedAttention apply_rotary_pos_emb single_all_to_all

[sparse attention] use torch.nn.attention.flex_attention
ops.sparse_attention: BSLongformerSparsityConfig BertSparseSelfAttention BigBirdSparsityConfig DenseSparsityConfig
  FixedSparsityConfig LocalSlidingWindowSparsityConfig SparseAttentionUtils SparseSelfAttention VariableSparsityConfig
ops.sparse_attention.matmul: MatMul
ops.sparse_attention.softmax: Softmax
ops.sparse_attention.sparsity_config: LocalSlidingWindowSparsityConfig

[SparseTensor] embeddings with sparse=True need none: their gradients are exchanged row by row
runtime.sparse_tensor: SparseTensor

[tensor parallelism in Python]
module_inject: AutoTP LinearAllreduce LinearLayer ReplaceWithTensorSlicing replace_transformer_layer
  revert_transformer_layer set_autotp_mode tp_model_init
module_inject.auto_tp: AutoTP AutoTPConfig PartitionType TPLayerSpec
module_inject.auto_tp_model_utils: build_bloom_alibi_tensor build_mpt_alibi_tensor get_alibi_mask
  install_head_sharded_helper
module_inject.autotp_config: AutoTPConfig PartitionType
module_inject.layers: GateUpPack_LinearLayer GatherReplacedLayerParams LinearAllreduce LinearLayer
  LmHeadLinearAllreduce SubParamLinearAllreduce SubParamLinearLayer Yuan_LinearAllreduce Yuan_LinearLayer
  collect_autotp_universal_checkpoint_info fused_LinearLayer set_autotp_mode
module_inject.replace_module: replace_transformer_layer
module_inject.replace_policy: HFGPT2LayerPolicy
module_inject.tp_plan_converter: TPPlanConverter
module_inject.tp_shard: get_shard_size get_shard_size_list set_num_kv_heads
runtime.tensor_parallel:
runtime.tensor_parallel.config: TPConfig TPTrainingConfig
runtime.utils: PartitionedTensor

[reading of DeepSpeed's files part by part] zerotorch.utils.zero_to_fp32 reads whole checkpoints, and engine.load_checkpoint() loads them
checkpoint: DeepSpeedCheckpoint ZeROCheckpoint get_model_3d_descriptor model_3d_desc
checkpoint.deepspeed_checkpoint: DeepSpeedCheckpoint
checkpoint.ds_to_universal: extract_zero_shards extract_zero_shards_stage3 merge_tp_slices
checkpoint.reshape_meg_2d: reshape_meg_2d_parallel
checkpoint.universal_checkpoint: load_hp_checkpoint_state
checkpoint.utils: get_model_ckpt_name_for_rank get_zero_ckpt_name_for_rank
checkpoint.zero_checkpoint: ZeROCheckpoint

[progressive layer dropping] drop layers in the model's forward
runtime.progressive_layer_drop: ProgressiveLayerDrop

[a Triton kernel of DeepSpeed's]
ops.triton_ops: swiglu
ops.triton_ops.group_gemm_triton: group_gemm_triton
ops.triton_ops.swiglu_triton: swiglu

[tiled linear layers] use torch.nn.Linear
runtime.zero.tiling: TiledLinear TiledLinearReturnBias
zero: TiledLinear

[swapping of tensors outside the engine] set zero_optimization.offload_optimizer or offload_param
runtime.swap_tensor:
runtime.swap_tensor.partitioned_param_swapper: AsyncPartitionedParameterSwapper
"""
