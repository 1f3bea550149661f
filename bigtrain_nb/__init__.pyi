# What type checkers and editors read in place of __init__.py. Written by tools/stub.py from the map of names there.
# ruff: noqa: I001

from bigtrain_nb.measure.rounds import compare as compare
from bigtrain_nb.measure.throughput import throughput as throughput
from bigtrain_nb.measure.results import Result as Result
from bigtrain_nb.measure.results import load as load
from bigtrain_nb.common.hardware import cores as cores
from bigtrain_nb.common.hardware import machine as machine
from bigtrain_nb.data.images import photo_crops as photo_crops
from bigtrain_nb.data.pipeline import Pipeline as Pipeline
from bigtrain_nb.common.quiet import tf as tf
from bigtrain_nb.train.model import Model as Model
from bigtrain_nb.train.files import load_model as load_model
from bigtrain_nb.train.small_models import conv_net as conv_net
from bigtrain_nb.train.small_models import gpt as gpt
from bigtrain_nb.train.devices import devices as devices
from bigtrain_nb.train.devices import mirrored as mirrored
from bigtrain_nb.launch.jobs import run_workers as run_workers
from bigtrain_nb.launch.strategy import strategy as strategy
from bigtrain_nb.train.preemption import PREEMPTED as PREEMPTED
from bigtrain_nb.train.resume import Resume as Resume
from bigtrain_nb.train.schedules import warmup_cosine as warmup_cosine
from bigtrain_nb.lab.lab import Lab as Lab
from bigtrain_nb.lab.race import race as race
from bigtrain_nb.workbook.workbook import check as check
from bigtrain_nb.workbook.workbook import hint as hint
from bigtrain_nb.workbook.workbook import predict as predict
from bigtrain_nb.workbook.workbook import reveal as reveal
from bigtrain_nb.workbook.workbook import score as score
from bigtrain_nb.workbook.workbook import solution as solution
from bigtrain_nb.advanced.text.text_data import source_text as source_text
from bigtrain_nb.advanced.text.text_data import text_folder as text_folder
from bigtrain_nb.advanced.text.token_rows import TokenRows as TokenRows
from bigtrain_nb.advanced.plan.plans import plan_step as plan_step
from bigtrain_nb.advanced.plan.clusters import plan_cluster as plan_cluster
from bigtrain_nb.advanced.plan.transformer import SIZES as SIZES
from bigtrain_nb.advanced.plan.transformer import Transformer as Transformer
from bigtrain_nb.advanced.plan.accelerators import ACCELERATORS as ACCELERATORS
from bigtrain_nb.advanced.plan.communication import all_reduce_seconds as all_reduce_seconds
from bigtrain_nb.advanced.parallel.recompute import recompute as recompute
from bigtrain_nb.advanced.parallel.attention import chunk_attention as chunk_attention
from bigtrain_nb.advanced.parallel.fused import fuse_attention as fuse_attention
from bigtrain_nb.advanced.parallel.chunked_head import chunk_head as chunk_head
from bigtrain_nb.advanced.parallel.masks import segment_mask as segment_mask
from bigtrain_nb.advanced.kernels.cuda_kernel import cuda_kernel as cuda_kernel
from bigtrain_nb.advanced.watch.diagnose import diagnose as diagnose
from bigtrain_nb.advanced.watch.profile import profile as profile
from bigtrain_nb.advanced.watch.peak_memory import peak_memory as peak_memory
from bigtrain_nb.advanced.watch.meter import Meter as Meter
from bigtrain_nb.advanced.watch.loss_scale import LossScaleHistory as LossScaleHistory
from bigtrain_nb.advanced.watch.overflow import find_overflow as find_overflow
from bigtrain_nb.advanced.preflight.preflight import preflight as preflight

__version__: str

def load_ipython_extension(shell) -> None: ...
