"""TensorFlow always counts the memory of a GPU, and that of a CPU with some allocators only.

oneDNN's allocator counts tensors of 256 KiB and more. TensorFlow for Linux on x86 has it, and takes it by itself only
on CPUs with AVX-512 or what came after it; on others, who asks for it gets oneDNN's operations too, which have another
speed. Elsewhere there is the allocator that GPUs have. It counts pieces of memory, which are often larger than the
tensors in them.
"""

import os
import platform
import sys


def count_cpu_memory() -> None:
    """Let `tf.config.experimental.get_memory_info("CPU:0")` answer, here and in processes that are started from here.

    Raises RuntimeError where TensorFlow is loaded already, which chooses its allocator then.
    """
    has_onednn = platform.system() == "Linux" and platform.machine() == "x86_64"
    setting = "TF_ENABLE_ONEDNN_OPTS" if has_onednn else "TF_CPU_ALLOCATOR_USE_BFC"
    if "tensorflow" in sys.modules and os.environ.get(setting) != "1":
        raise RuntimeError("TensorFlow is loaded already: restart the kernel, and call count_cpu_memory() first")
    os.environ[setting] = "1"
