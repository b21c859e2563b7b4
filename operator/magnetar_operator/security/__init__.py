"""Certificates, token keys and tokens of clusters: issued into Secrets, renewed, rotated.

`plan` decides and does no IO; `issue` creates keys and signs; `issuer` reads and writes Secrets.
`job` runs the same for clusters that the chart creates without the operator.
"""
