"""Mutants of other modules that have a bug of a released engine: their citations."""

from __future__ import annotations

from zerobench.suites.meta.mutants import accounting, bytes, edit, ignored, late, offload, plain, recovery  # noqa: A004
from zerobench.suites.meta.mutants.historical.bug import happened_in

_OVERFLOW = "test_overflow_moves_nothing"
_EDIT = "test_edits_persist"

happened_in(
    "Accelerate and transformers, 2025",
    "huggingface/accelerate#3533",
    "huggingface/transformers#35808",
    story="Trainer and accelerator both divide the loss by the micro-steps.",
)(plain.AveragesTwice)
happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#7724",
    "huggingface/accelerate#3877",
    story="If the client calls loss.backward(), nobody divides by the micro-steps.",
)(plain.AveragesOverRanksOnly)
happened_in(
    "fairscale ShardedDDP",
    "facebookresearch/fairscale#517",
    "facebookresearch/fairscale#521",
    story="A bucket that is not full at the end of backward is not flushed.",
)(plain.DropsTheTailBucket)
happened_in(
    "Megatron-FSDP v2, 2026",
    "NVIDIA/Megatron-LM#7186",
    story="With hybrid data parallelism only the last micro-step's gradient reaches the optimizer.",
)(plain.LosesEarlierMicroSteps)
happened_in(
    "torch DDP before 2020",
    "pytorch/pytorch#28883",
    story="A parameter that no rank uses gets a gradient of zeros, so decay and momentum move it.",
)(plain.MovesInactiveParameters)
happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#8471",
    story="FusedAdam takes the step count of the last active parameter for all parameters.",
)(plain.SharesOneStepCount)
happened_in(
    "torch.optim (fused) before 2023-03",
    "pytorch/pytorch#95781",
    "pytorch/pytorch#95847",
    story="found_inf is not passed on if there is no grad_scale, so a bad step is applied.",
    by=_OVERFLOW,
)(plain.NeverSkips)
happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#5170",
    story="In bf16 without ZeRO the ranks add bf16 gradients, not the fp32 sums that they keep.",
)(plain.AddsInTheWireDtype)
happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#8588",
    story="Without a fused optimizer the grad norm is that of the scaled gradients.",
)(plain.ClipsTheScaledNorm)
happened_in(
    "DeepSpeed before 2023-02",
    "deepspeedai/DeepSpeed#2789",
    "deepspeedai/DeepSpeed#2807",
    story="Stage 3 ignores communication_data_type.",
)(ignored.CommunicatesInTheModelsDtype)
happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#6976",
    "deepspeedai/DeepSpeed#5241",
    story="Only fp16 is checked for overflow: a NaN in bf16 is applied.",
    by=_OVERFLOW,
)(recovery.ChecksOverflowInFp16Only)
happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#1599",
    story="ZeRO-2 lowers the loss scale more than once at one overflow.",
    by="test_dynamic_loss_scale",
)(recovery.QuartersTheScale)
happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#5523",
    "deepspeedai/DeepSpeed#5545",
    "deepspeedai/DeepSpeed#5606",
    story="With overlap_comm a wait is missing between a bucket's reduction and its use.",
)(late.FoldsWhatHasNotArrived)
happened_in(
    "DeepSpeed (hpZ)",
    "deepspeedai/DeepSpeed#5059",
    story="Computation begins before the copy of the gathered weights has ended.",
)(late.ComputesWithUnitsThatHaveNotArrived)
happened_in(
    "Megatron-LM before 2024-01",
    "NVIDIA/Megatron-LM#663",
    story="With overlap-param-gather forwards use parameters that have not arrived; the loss does not fall.",
)(late.GoesOnBeforeNewParametersHaveArrived)
happened_in(
    "torch FSDP2 (hybrid sharding, CPU offload)",
    "pytorch/pytorch#180665",
    story="Copies of gradients to the host race with the reuse of their memory.",
)(late.StepsOnSumsThatAreStillComingDown)
happened_in(
    "torch FSDP2 (CPU offload)",
    "pytorch/pytorch#180666",
    story="Pinned memory is read before its copy has arrived.",
)(late.ReusesStagingThatIsStillGoingUp)
happened_in(
    "DeepSpeed before 2022",
    "deepspeedai/DeepSpeed#1666",
    "deepspeedai/DeepSpeed#1679",
    story="With ZeRO-1 and offload gradients are not copied to the host.",
)(offload.LosesGradientsOnTheWayDown)
happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#7811",
    "deepspeedai/DeepSpeed#7832",
    story="An edit inside GatheredParameters is lost.",
    by=_EDIT,
)(edit.EditsACopyOfTheMaster)
happened_in(
    "DeepSpeed 0.9.4",
    "deepspeedai/DeepSpeed#3836",
    story="Weights set inside GatheredParameters do not reach the shards; training starts with a large loss.",
    by=_EDIT,
)(edit.EditsACopyOfTheShard)
happened_in(
    "torch FSDP2",
    "pytorch/pytorch#179443",
    story="Hybrid sharding holds every layer's fp32 gradient until the end of backward.",
    by="test_a_backward_holds_its_shard_and_its_buckets",
)(bytes.KeepsGradientsDuringBackward)
happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#2665",
    story="Memory of gathered parameters is not given back.",
    by="test_a_step_costs_the_same_after_a_reading",
)(bytes.KeepsWhatWasRead)
happened_in(
    "torch ZeroRedundancyOptimizer",
    "pytorch/pytorch#63162",
    story="With overlap every step leaks memory.",
    by="test_memory_does_not_grow",
)(accounting.GrowsWithEveryStep)
