"""Count CPU memory: TensorFlow always counts GPU memory, but CPU memory only with some allocators.

oneDNN's allocator counts tensors of 256 KiB and more. TensorFlow for Linux on x86 includes it, but enables it by
default only on CPUs with AVX-512 or newer extensions. Enabling it on other CPUs also enables oneDNN's operations, whose
speed differs. Other platforms have the allocator used for GPUs. It counts memory blocks, which are often larger than
the tensors in them.
"""

import os
import platform
import sys


def count_cpu_memory() -> None:
    """Enable `tf.config.experimental.get_memory_info("CPU:0")` in this process and its children.

    Raises RuntimeError if TensorFlow is already loaded without this setting: it chooses its allocator at load time.
    """
    has_onednn = platform.system() == "Linux" and platform.machine() == "x86_64"
    setting = "TF_ENABLE_ONEDNN_OPTS" if has_onednn else "TF_CPU_ALLOCATOR_USE_BFC"
    if "tensorflow" in sys.modules and os.environ.get(setting) != "1":
        raise RuntimeError("TensorFlow is loaded already: restart the kernel, and call count_cpu_memory() first")
    os.environ[setting] = "1"
