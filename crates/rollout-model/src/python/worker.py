"""Calls Python functions for Rollout: one line of JSON per call, and one per answer, in any order."""

import sys

# Modules in the working directory are not importable.
sys.path[:] = [entry for entry in sys.path if entry]

import asyncio
import builtins
import importlib.util
import inspect
import json
import math
import os
import threading
import traceback
import types
import typing
from concurrent.futures import ThreadPoolExecutor

MAX_ANSWER = int(sys.argv[1])
THREADS = int(sys.argv[2])
TRACEBACK_LINES = 6

# Functions print to standard error. Standard output is only for answers.
ANSWERS = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
# A function that reads standard input must not read calls.
CALLS = os.fdopen(os.dup(0), "rb")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

# The prefix for the names of another directory's modules.
PACKAGE = "_rollout_directory_"

modules = {}
packages = {}
plain_import = builtins.__import__
loading = threading.RLock()
writing = threading.Lock()


class Wrong(Exception):
    """A function that cannot be called."""


def package(directory):
    """The prefix of the names of a directory's modules.

    Several interactions share this process, and the files next to their functions may have the same names. Modules of the
    first directory have plain names; those of each other directory are in a package.
    """
    if directory not in packages:
        if not packages:
            packages[directory] = ""
            sys.path.insert(0, directory)
        else:
            name = PACKAGE + str(len(packages))
            packages[directory] = name + "."
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__path__ = [directory]
            sys.path.append(directory)
            builtins.__import__ = import_beside
    return packages[directory]


def import_beside(name, globals=None, locals=None, fromlist=(), level=0):
    """Imports modules next to the importing file before other modules of the same name."""
    importer = (globals or {}).get("__name__")
    if level == 0 and isinstance(importer, str) and importer.startswith(PACKAGE):
        beside = importer.partition(".")[0] + "."
        top = beside + name.partition(".")[0]
        spec = importlib.util.find_spec(top)
        if spec is not None and spec.has_location:
            found = plain_import(beside + name, globals, locals, fromlist, 0)
            return found if fromlist else sys.modules[top]
    return plain_import(name, globals, locals, fromlist, level)


def module(file):
    with loading:
        if file not in modules:
            directory = os.path.normpath(os.path.dirname(file))
            name = package(directory) + os.path.splitext(os.path.basename(file))[0]
            spec = importlib.util.spec_from_file_location(name, file)
            if spec is None or spec.loader is None:
                raise Wrong(f"{file} is not a Python file")
            loaded = importlib.util.module_from_spec(spec)
            sys.modules.setdefault(name, loaded)
            spec.loader.exec_module(loaded)
            modules[file] = loaded
        return modules[file]


def function(call):
    found = module(call["file"])
    for part in call["function"].split("."):
        if not hasattr(found, part):
            raise Wrong(f"there is no function `{call['function']}` in {call['file']}")
        found = getattr(found, part)
    if not callable(found):
        raise Wrong(f"`{call['function']}` is not a function")
    return found


def run(found, arguments):
    given = found(**arguments)
    return asyncio.run(awaited(given)) if inspect.isawaitable(given) else given


async def awaited(given):
    return await given


def number(value):
    if isinstance(value, bool):
        return float(value)
    if not isinstance(value, (int, float)) and not hasattr(value, "__float__"):
        raise TypeError(f"it returned {type(value).__name__}, not a number")
    value = float(value)
    if not math.isfinite(value):
        raise ValueError(f"it returned {value}, which is not finite")
    return value


def truth(value):
    # NumPy has its own boolean type.
    if type(value).__name__ not in ("bool", "bool_"):
        raise TypeError(f"it returned {type(value).__name__}, not a boolean")
    return bool(value)


def spoken(value):
    if value is not None and not isinstance(value, str):
        raise TypeError(f"it returned {type(value).__name__}, not a text or None")
    return value


def wanted(found):
    """The parameters of a function, and whether it takes any argument."""
    parameters = inspect.signature(found).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise Wrong(f"the parameter `{parameter.name}` has to be given by its name")
    return {
        "names": [parameter.name for parameter in parameters if parameter.kind in named],
        "required": [
            parameter.name
            for parameter in parameters
            if parameter.kind in named and parameter.default is inspect.Parameter.empty
        ],
        "everything": any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters),
    }


def schema(kind):
    """The JSON Schema of a type; empty for types that JSON does not have."""
    plain = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
    if kind in plain:
        return {"type": plain[kind]}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (list, set, tuple, frozenset):
        return {"type": "array", **({"items": schema(arguments[0])} if arguments else {})}
    if origin is dict:
        return {"type": "object"}
    if origin is typing.Annotated:
        described = [text for text in arguments[1:] if isinstance(text, str)]
        return {**schema(arguments[0]), **({"description": described[0]} if described else {})}
    if origin in (typing.Union, types.UnionType):
        kinds = [schema(argument) for argument in arguments if argument is not type(None)]
        if type(None) in arguments:
            kinds.append({"type": "null"})
        return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    if kind is type(None):
        return {"type": "null"}
    return {}


def documentation(found):
    """The descriptions of a function and of its arguments in a docstring."""
    lines = (inspect.getdoc(found) or "").splitlines()
    about, arguments, name, inside = [], {}, None, False
    for line in lines:
        text = line.strip()
        if text.lower() in ("args:", "arguments:", "parameters:"):
            inside = True
        elif inside and text and not line.startswith((" ", "\t")):
            # Other sections, such as the return value, are not for the model.
            break
        elif not inside:
            if text.lower() in ("returns:", "raises:", "yields:", "example:", "examples:", "note:", "notes:"):
                break
            about.append(text)
        elif text:
            head, colon, rest = text.partition(":")
            key = head.split("(")[0].strip()
            if colon and key.isidentifier():
                name = key
                arguments[name] = rest.strip()
            elif name:
                arguments[name] += " " + text
    return "\n".join(about).strip(), arguments


def description(found):
    """The description of a tool for models."""
    about, arguments = documentation(found)
    takes = wanted(found)
    try:
        hints = typing.get_type_hints(found, include_extras=True)
    except Exception:
        hints = {}
    properties = {}
    for name in takes["names"]:
        known = schema(hints.get(name, typing.Any))
        default = inspect.signature(found).parameters[name].default
        if default is not inspect.Parameter.empty and isinstance(default, (str, int, float, bool, list, dict)):
            known["default"] = default
        if arguments.get(name):
            known.setdefault("description", arguments[name])
        properties[name] = known
    parameters = {"type": "object", "properties": properties, "required": takes["required"]}
    if not takes["everything"]:
        parameters["additionalProperties"] = False
    return {"name": found.__name__, "description": about, "parameters": parameters}


def plain(value):
    """Converts a result to JSON: values that JSON does not have become text."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return str(value)
    return value


def answer(call):
    found = function(call)
    match call["do"]:
        case "takes":
            return wanted(found)
        case "describe":
            return description(found)
        case "score":
            return number(run(found, call["arguments"]))
        case "score_group":
            scores = [number(score) for score in run(found, call["arguments"])]
            if len(scores) != call["rollouts"]:
                raise ValueError(f"it returned {len(scores)} numbers for {call['rollouts']} rollouts")
            return scores
        case "stop":
            return truth(run(found, call["arguments"]))
        case "say":
            return spoken(run(found, call["arguments"]))
        case "tool":
            return plain(run(found, call["arguments"]))
    raise Wrong(f"unknown call {call['do']}")


def failure(error):
    frames = traceback.extract_tb(error.__traceback__)
    # Frames of this program and of Python's loader say nothing about the function.
    frames = [frame for frame in frames if not frame.filename.startswith("<")]
    lines = "".join(traceback.format_list(frames)).rstrip().splitlines()
    return {
        "type": "" if isinstance(error, Wrong) else type(error).__name__,
        "message": str(error),
        "traceback": "\n".join(lines[-TRACEBACK_LINES:]),
    }


def reply(number, given):
    line = json.dumps({"id": number, **given}).encode()
    if len(line) > MAX_ANSWER:
        error = {"type": "ValueError", "message": f"it returned more than {MAX_ANSWER} bytes", "traceback": ""}
        line = json.dumps({"id": number, "error": error}).encode()
    with writing:
        ANSWERS.write(line + b"\n")
        ANSWERS.flush()


def work(line):
    call = json.loads(line)
    try:
        given = {"value": answer(call)}
    # A function that exits ends only its own call.
    except (Exception, SystemExit) as error:
        given = {"error": failure(error)}
    reply(call["id"], given)


with ThreadPoolExecutor(THREADS) as pool:
    for line in CALLS:
        pool.submit(work, line)
    # Rollout has closed the pipe.
    os._exit(0)
