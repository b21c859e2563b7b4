"""Every command of `pulsar-admin` on Magnetar, beside the answers of Pulsar 4.2.4."""
