"""Cloud services: S3, Google Cloud Storage, BigQuery, Bigtable, Timestream, Lambda. One file each;
`aws` has what those of AWS share, `google` what those of Google share."""
