# powerband on CPUs. CI does not build this image.
#
#     docker build -t powerband .
#     docker run --rm --shm-size=8g -v "$PWD/runs:/work/runs" powerband train snakes variant=demo gpus=none nproc=2
FROM python:3.11-slim

# Rendering without a display; g++ for torch.compile.
RUN apt-get update && apt-get install -y --no-install-recommends libegl1 libgl1 libosmesa6 g++ \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/powerband
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu \
    && pip install --no-cache-dir '.[gym,metaworld]'

WORKDIR /work
ENTRYPOINT ["powerband"]
CMD ["list"]
