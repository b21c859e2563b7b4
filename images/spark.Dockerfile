# The image of Spark jobs: pyspark, Java 17, and Magnetar's packages, for drivers and executors.
#
# Built by `make images`, or by hand from the repository's root, after the image of Magnetar:
#   docker build -f images/spark.Dockerfile --build-arg MAGNETAR=magnetar:dev -t magnetar-spark:dev .
#
# BASE is Debian with Python, as for Magnetar's image, which MAGNETAR names: Java is Debian's.
# pyspark ships Spark's jars, those for Kubernetes too, but no entry point: `spark-entry` is ours.

ARG BASE=docker.io/library/python:3.11-slim-bookworm
ARG BUILDER=${BASE}
ARG MAGNETAR=magnetar:dev

FROM ${MAGNETAR} AS magnetar

# --- the packages of uv.lock's extra `spark`; pyspark comes as a source archive that holds its jars ----
FROM ${BUILDER} AS builder
ARG PYTHON=python3
ENV UV_PROJECT_ENVIRONMENT=/opt/magnetar UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never \
    PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /build
COPY images/with-ca images/builder.txt ./
RUN --mount=type=secret,id=ca \
    missing="$($PYTHON -c 'import ensurepip' 2>/dev/null || echo python3-venv) $(command -v strip >/dev/null || echo binutils)"; \
    if [ "$missing" != " " ]; then \
      apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing >/dev/null; \
    fi; \
    $PYTHON -m venv /opt/uv && \
    ./with-ca /opt/uv/bin/pip install --quiet --require-hashes --only-binary :all: -r builder.txt
COPY pyproject.toml uv.lock ./
RUN --mount=type=secret,id=ca \
    ./with-ca /opt/uv/bin/uv sync --quiet --no-cache --frozen --no-dev --no-install-project \
      --python "$(command -v $PYTHON)" --extra spark
COPY images/tidy images/spark-tidy ./
RUN ./tidy /opt/magnetar && ./spark-tidy /opt/magnetar/lib/python3*/site-packages/pyspark && \
    echo /opt/magnetar/app > "$(echo /opt/magnetar/lib/python3*/site-packages)/magnetar.pth" && \
    /opt/magnetar/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash \
      /opt/magnetar/lib/python3*/site-packages
COPY --from=magnetar /opt/magnetar/bin/magnetar /opt/magnetar/bin/
COPY --from=magnetar /opt/magnetar/app /opt/magnetar/app
COPY spark-jobs/magnetar_spark /opt/magnetar/app/magnetar_spark
RUN /opt/magnetar/bin/python -m compileall -q --invalidation-mode unchecked-hash \
      /opt/magnetar/app/magnetar_spark

# --- the image ---------------------------------------------------------------------------------
FROM ${BASE} AS magnetar-spark
COPY images/base /tmp/base
RUN apt-get update -qq && \
    mkdir -p /usr/share/man/man1 && \
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
      openjdk-17-jre-headless >/dev/null && \
    ln -s "$(dirname "$(dirname "$(readlink -f /usr/bin/java)")")" /opt/java && \
    rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* && \
    /tmp/base && rm /tmp/base
COPY --from=builder /opt/magnetar /opt/magnetar
RUN ln -s /opt/magnetar/lib/python3*/site-packages/pyspark /opt/spark
COPY --chmod=755 images/spark-entry /opt/spark-entry
# gRPC's fork handlers and a JVM that Python starts do not go together.
ENV SPARK_HOME=/opt/spark JAVA_HOME=/opt/java PYSPARK_PYTHON=/opt/magnetar/bin/python \
    GRPC_ENABLE_FORK_SUPPORT=0 \
    PATH=/opt/spark/bin:/opt/magnetar/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 LANG=C.UTF-8 HOME=/tmp
ARG REVISION=unknown
ARG VERSION=unknown
RUN --mount=type=bind,source=images/sbom,target=/tmp/sbom /tmp/sbom magnetar-spark "${VERSION}"
LABEL org.opencontainers.image.title="Magnetar Spark" \
      org.opencontainers.image.description="Spark jobs over Magnetar's topics and ledgers" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 10000:10000
WORKDIR /var/lib/magnetar
ENTRYPOINT ["/opt/spark-entry"]
