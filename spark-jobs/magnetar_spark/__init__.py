"""Topics as tables and streams of Spark: `register(spark)`, then `spark.read.format("pulsar")`.

See docs/use/spark.md for options and columns.
"""

from pyspark.sql import SparkSession

from magnetar_spark.source import PulsarDataSource

__all__ = ["PulsarDataSource", "register"]

PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Makes the format `pulsar` known to this session, and allows its option `filterPushdown`."""
    spark.conf.set(PUSH_DOWN, "true")
    spark.dataSource.register(PulsarDataSource)
