"""The CI jobs that `squall new --ci` writes: run the file, keep what it wrote, fail as it does."""

from __future__ import annotations

from typing import NamedTuple


class CIFile(NamedTuple):
    path: str
    """Relative to the folder of the command, which should be that of the repository."""
    text: str
    """With FILE in the place of the workflow's path."""


_GITHUB = """\
name: load test
on:
  workflow_dispatch:
  schedule:
    - cron: "0 3 * * *"

jobs:
  load:
    runs-on: ubuntu-latest
    timeout-minutes: 30
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      # Set the repository variable SQUALL_REPOSITORY to the address of Squall's repository.
      - run: pip install "git+$SQUALL_REPOSITORY"
        env:
          SQUALL_REPOSITORY: ${{ vars.SQUALL_REPOSITORY }}
      # Set the repository variable TARGET to the address of what is tested, and a secret for each
      # value that the file reads: --secret API_TOKEN with API_TOKEN under env.
      # The exit code decides: 99 a threshold failed, 98 the result is invalid.
      # The report is added to the summary of the job.
      - run: >-
          squall run FILE --host "$TARGET"
          --json results.json --html report.html --junit junit.xml --markdown report.md
        env:
          TARGET: ${{ vars.TARGET }}
      - uses: actions/upload-artifact@v4
        if: always()
        with:
          name: load-test
          path: |
            results.json
            report.html
            junit.xml
"""

_GITLAB = """\
load test:
  image: python:3.12
  rules:
    - if: $CI_PIPELINE_SOURCE == "schedule" || $CI_PIPELINE_SOURCE == "web"
  timeout: 30 minutes
  script:
    # Set the CI variable SQUALL_REPOSITORY to the address of Squall's repository.
    - pip install "git+$SQUALL_REPOSITORY"
    # Set the CI variable TARGET to the address of what is tested. Secrets are masked variables:
    # --secret API_TOKEN.
    # The exit code decides: 99 a threshold failed, 98 the result is invalid.
    - >-
      squall run FILE --host "$TARGET"
      --json results.json --html report.html --junit junit.xml
  artifacts:
    when: always
    paths:
      - results.json
      - report.html
    reports:
      junit: junit.xml
"""

CI_FILES = {
    "github": CIFile(".github/workflows/load-test.yml", _GITHUB),
    "gitlab": CIFile(".gitlab-ci.yml", _GITLAB),
}
