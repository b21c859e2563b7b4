"""Builds findings, and the parts that several judgments share."""

from collections.abc import Iterator

from magnetar.broker.explain import steps
from magnetar.broker.explain.codes import Code
from magnetar.broker.explain.refusals import Refusal
from magnetar.broker.explain.state import PolicyValue, TxnState
from magnetar.core.names import TopicName
from magnetar.documents.explain import Evidence, Finding, NextStep, utc


def finding(
    code: Code, summary: str, evidence: Evidence, step: NextStep, since_ms: int = 0
) -> Finding:
    """Returns a finding; `since_ms` 0 is not known."""
    return Finding(code.value, summary, evidence, step, utc(since_ms) if since_ms else None)


def time(at_ms: int) -> str | None:
    """Returns a time of the evidence; None for never."""
    return utc(at_ms) if at_ms else None


def policy_evidence(policy: PolicyValue | None) -> Evidence:
    """Returns which policy it is, and where it is set."""
    if policy is None:
        return {}
    return {"policy": policy.name, "level": policy.level, "value": str(policy.value)}


def overridden(topic: TopicName, policy: PolicyValue | None) -> Iterator[Finding]:
    """Yields a finding if the topic's own value hides its namespace's."""
    if policy is not None and policy.level == "topic" and policy.overridden is not None:
        yield finding(
            Code.POLICY_OVERRIDDEN,
            f"{policy.name} is {policy.value} on the topic itself, which overrides "
            f"{policy.overridden} of namespace {topic.namespace}.",
            {
                "policy": policy.name,
                "value": str(policy.value),
                "namespace_value": str(policy.overridden),
            },
            steps.advise(
                f"To use the namespace's value, remove the topic's own: pulsar-admin "
                f"topicPolicies, or DELETE the policy below {steps.topic_path(topic)}."
            ),
        )


def transaction_evidence(txn: TxnState) -> Evidence:
    """Returns the transaction's id, owner, times and coordinator."""
    return {
        "transaction": str(txn),
        "coordinator": txn.most,
        "owner": txn.owner,
        "opened": time(txn.opened_ms),
        "times_out": time(txn.deadline_ms),
        "state": txn.state or None,
        "first_message": None if txn.first is None else str(txn.first),
        "acked_entries": txn.acked_entries,
    }


def ended_by(txn: TxnState) -> str:
    """Says when the coordinator ends the transaction."""
    if not txn.deadline_ms:
        return "its record could not be read"
    return f"its coordinator aborts it at {utc(txn.deadline_ms)} at the latest"


_REFUSED = {
    "AUTHORIZATION_ERROR": Code.RIGHT_MISSING,
    "INCOMPATIBLE_SCHEMA": Code.SCHEMA_INCOMPATIBLE,
    "PRODUCER_FENCED": Code.PRODUCER_FENCED,
}


def refused(topic: TopicName, refusal: Refusal) -> Finding:
    """Returns the finding for a client that was refused."""
    encrypted = "Encryption is required" in refusal.text
    code = Code.ENCRYPTION_REQUIRED if encrypted else _REFUSED.get(refusal.error)
    if code is None:
        code = Code.CONSUMER_REFUSED if refusal.kind == "consumer" else Code.PRODUCER_REFUSED
    client = f"{refusal.kind} {refusal.name}" if refusal.name else f"a {refusal.kind}"
    evidence: Evidence = {
        "client": refusal.kind,
        "name": refusal.name,
        "role": refusal.role or None,
        "address": refusal.address,
        "error": refusal.error,
        "text": refusal.text,
        "times": refusal.times,
        "last": utc(refusal.last_ms),
    }
    if refusal.subscription:
        evidence["subscription"] = refusal.subscription
    return finding(
        code,
        f"The broker refused {client} from {refusal.address} at {utc(refusal.last_ms)}: "
        f"{refusal.text}",
        evidence,
        _after_refusal(topic, refusal, code),
        refusal.first_ms,
    )


def _after_refusal(topic: TopicName, refusal: Refusal, code: Code) -> NextStep:
    action = "consume" if refusal.kind == "consumer" else "produce"
    if code is Code.RIGHT_MISSING:
        return steps.grant(topic, refusal.role, action)
    if code is Code.SCHEMA_INCOMPATIBLE:
        return steps.schema(topic)
    if code is Code.ENCRYPTION_REQUIRED:
        return steps.encryption_off(
            topic,
            "Give the producer an encryption key (CryptoKeyReader). To admit producers without "
            "encryption:",
        )
    if code is Code.PRODUCER_FENCED:
        return steps.advise(
            "Another producer took the exclusive access. Stop it, then create this producer anew: "
            "a fenced producer never returns."
        )
    return steps.advise("The text says what the client must change.")
