"""Keys of elliptic curves: our client and Java's read each other's encrypted messages."""

import asyncio
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from magnetar.client import Client, Decryption, Encryption, InitialPosition

from .client_rig import take, values
from .java_programs import HERE, JAVA_TEST_TIMEOUT_S, JavaPrograms, compiled, jars
from .support import ServerAddress
from .test_client_encryption import Folder

PROGRAM_TIMEOUT_S = 120.0
CURVES: dict[str, ec.EllipticCurve] = {
    "p256": ec.SECP256R1(),
    "p521": ec.SECP521R1(),
    "k256": ec.SECP256K1(),
}
# What `openssl ecparam -genkey` writes before a key: the name of its curve.
P256_PARAMETERS = b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"

pytestmark = pytest.mark.timeout(JAVA_TEST_TIMEOUT_S)


def write_keys(folder: Path) -> None:
    for name, curve in CURVES.items():
        key = ec.generate_private_key(curve)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        before = P256_PARAMETERS if name == "p256" else b""
        (folder / f"{name}.pem").write_bytes(before + private)
        (folder / f"{name}.pub.pem").write_bytes(before + public)


async def test_both_clients_read_each_other(
    java: JavaPrograms, server: ServerAddress, topic: str, tmp_path: Path
) -> None:
    write_keys(tmp_path)
    answers = f"{topic}-answers"
    class_path = await asyncio.to_thread(compiled, HERE / "encryption", jars("client"))
    command = java.command(
        class_path, "CurveKeys", server.service_url, topic, answers, str(tmp_path), *CURVES
    )
    async with Client(server.service_url) as client:
        encryption = Encryption(list(CURVES), Folder(tmp_path))
        async with client.producer(topic, encryption=encryption) as producer:
            await producer.send(b"from Python")
        program = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        async with asyncio.timeout(PROGRAM_TIMEOUT_S):
            out, _ = await program.communicate()
        assert out.decode().splitlines() == [f"{name} from Python" for name in CURVES]
        for name in CURVES:
            decryption = Decryption(Folder(tmp_path, own=name))
            async with client.consumer(
                answers, name, decryption=decryption, initial_position=InitialPosition.EARLIEST
            ) as consumer:
                assert values(await take(consumer, 1)) == [b"from Java"]
