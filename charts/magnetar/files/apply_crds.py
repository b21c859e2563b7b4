"""Applies the operator's CRDs (the files of a folder) server-side, with this pod's account.

The environment has CRDS, the folder, and outside of a pod API_URL, TOKEN_FILE and CA_FILE. Exits
with 1 and a line per refused file.
"""
# ruff: noqa: S310, T201 (the URL is the API server's; what is printed is the Job's log)

import os
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
FIELD_MANAGER = "magnetar-chart"
REQUEST_TIMEOUT_S = 30.0


def main() -> int:
    url = os.environ.get("API_URL", "https://kubernetes.default.svc")
    token = Path(os.environ.get("TOKEN_FILE", ACCOUNT / "token")).read_text().strip()
    trusted = ssl.create_default_context(cafile=os.environ.get("CA_FILE", str(ACCOUNT / "ca.crt")))
    refused = 0
    for file in sorted(Path(os.environ["CRDS"]).glob("*.yaml")):
        name = file.stem + ".magnetar.io"
        request = urllib.request.Request(
            f"{url}/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
            f"?fieldManager={FIELD_MANAGER}&force=true",
            data=file.read_bytes(),
            method="PATCH",
            headers={
                "Authorization": f"Bearer {token}",
                "Content-Type": "application/apply-patch+yaml",
            },
        )
        try:
            with urllib.request.urlopen(
                request, timeout=REQUEST_TIMEOUT_S, context=trusted
            ) as answer:
                print(f"{name}: {answer.status}")
        except urllib.error.HTTPError as error:
            refused += 1
            print(f"{name}: {error.code} {error.read().decode(errors='replace')}")
    return int(refused > 0)


sys.exit(main())
