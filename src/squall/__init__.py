"""Squall: load tests in plain Python, with numbers you can defend.

The author imports everything from here.
"""

from squall.api.arguments import URL, Auth, Cookies, Data, File, Form, Headers, Params
from squall.api.errors import ConfigError, SquallError, StatusError, TransportError
from squall.api.feeds import Feed
from squall.api.hooks import Provide, Use, action, check, depends, metric, state, step, then
from squall.api.http import HTTPResponse
from squall.api.metrics import Counter, Gauge, Rate, Sample
from squall.api.resources import Resource
from squall.api.results import CustomResult, Timed
from squall.api.values import bearer, env
from squall.api.workflow import Workflow
from squall.python import LocalRunner, run

__all__ = [
    "URL",
    "Auth",
    "ConfigError",
    "Cookies",
    "Counter",
    "CustomResult",
    "Data",
    "Feed",
    "File",
    "Form",
    "Gauge",
    "HTTPResponse",
    "Headers",
    "LocalRunner",
    "Params",
    "Provide",
    "Rate",
    "Resource",
    "Sample",
    "SquallError",
    "StatusError",
    "Timed",
    "TransportError",
    "Use",
    "Workflow",
    "action",
    "bearer",
    "check",
    "depends",
    "env",
    "metric",
    "run",
    "state",
    "step",
    "then",
]
