# vLLM of a release or commit, compiled for the GPU of a Spark (GB10, sm_121), on NVIDIA's PyTorch with its torch and NCCL.
# engine_image_build: {dockerfile: vllm, arguments: {VLLM_REF: v0.33.0}}. Not built by the tests: that needs a Spark.
ARG BASE=nvcr.io/nvidia/pytorch:26.10-py3
FROM ${BASE}

ENV DEBIAN_FRONTEND=noninteractive PIP_NO_CACHE_DIR=1
RUN apt-get update \
    && apt-get install -y --no-install-recommends cmake git libnuma1 libprotobuf-dev ninja-build protobuf-compiler rustup \
    && rm -rf /var/lib/apt/lists/* && rustup default stable

ARG TORCH_CUDA_ARCH_LIST=12.1a
ENV TORCH_CUDA_ARCH_LIST=${TORCH_CUDA_ARCH_LIST} TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas

ARG VLLM_REPOSITORY=https://github.com/vllm-project/vllm.git
ARG VLLM_REF
# Another word here fetches and compiles again what a branch has by then.
ARG CACHE_BUST=
RUN : "${CACHE_BUST}" && git init -q /opt/vllm && cd /opt/vllm \
    && git fetch -q --depth 1 "${VLLM_REPOSITORY}" "${VLLM_REF:?name a tag, branch or commit}" && git checkout -q FETCH_HEAD

# So many compilers as have room in the memory that is free when it is built.
ARG MAX_JOBS=4
RUN cd /opt/vllm && python3 use_existing_torch.py \
    && for file in requirements/build.txt requirements/build/cuda.txt requirements/build/rust.txt; do \
           if [ -f "${file}" ]; then pip install -r "${file}" || exit 1; fi; \
       done \
    && SETUPTOOLS_SCM_PRETEND_VERSION="$(echo "${VLLM_REF}" | sed -n 's/^v\([0-9.]*\)$/\1/p')" \
       MAX_JOBS="${MAX_JOBS}" pip install --no-build-isolation . \
    && rm -rf /opt/vllm

# For engine_launch: ray; older ones know no tokens and are refused.
ARG RAY=2.60.0
RUN pip install "ray[default]==${RAY}"

ENTRYPOINT ["vllm", "serve"]
