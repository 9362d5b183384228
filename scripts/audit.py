"""Audit of what is installed: known weaknesses of each version, and licences.

python scripts/audit.py                    the packages of this environment
python scripts/audit.py --no-advisories    licences alone, without the network

The exit code is 1 for a known weakness, or for a licence that is not on the list. Advisories come from OSV
(https://osv.dev), by name and version, in one question. Where it cannot be reached, one line says so, and licences
alone decide; --strict makes that a failure.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import urllib.error
import urllib.request
from importlib import metadata
from typing import Any, NamedTuple

DATABASE = "https://api.osv.dev/v1/querybatch"
SECONDS = 20.0
ALLOWED = {  # permissive, or copyleft that stops at a file or a library
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0",
    "HPND", "ISC", "LGPL-2.1", "MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Unlicense", "Zlib",
}  # fmt: skip
OTHER = {"ale-py": "GPL-2.0-only"}  # in an extra of its own, which nothing else needs
CUDA = ("nvidia-", "cuda-")  # libraries that come with builds of torch for GPUs, under their maker's own terms
WORDS = {  # licences in words, as classifiers and older metadata have them: their SPDX names
    "apache": "Apache-2.0", "bsd": "BSD-3-Clause", "mit": "MIT", "mozilla public license 2": "MPL-2.0",
    "mpl": "MPL-2.0", "isc": "ISC", "zlib": "Zlib", "python software foundation": "PSF-2.0", "matplotlib": "PSF-2.0",
    "lesser general public": "LGPL-2.1", "lgpl v2.1": "LGPL-2.1", "gnu general public": "GPL",
    "unlicense": "Unlicense", "historical permission notice": "HPND",
}  # fmt: skip


class Package(NamedTuple):
    name: str
    version: str
    licence: str


def installed() -> list[Package]:
    """The packages of this environment, by name."""
    found = {}
    for package in metadata.distributions():
        name = str(package.metadata["Name"])
        found[name.lower()] = Package(name, package.version.partition("+")[0], licence_of(package.metadata))
    return [found[name] for name in sorted(found)]


def licence_of(facts: Any) -> str:
    """The licence in SPDX's words: the expression of newer metadata, else what classifiers or the old field say."""
    if facts.get("License-Expression"):
        return str(facts["License-Expression"])
    classifiers = [c.rpartition(" :: ")[2] for c in facts.get_all("Classifier") or [] if c.startswith("License :: ")]
    known = [text for text in map(spdx, classifiers) if text]
    first = next((line for line in (facts.get("License") or "").splitlines() if line.strip()), "").strip()
    named = " OR ".join(dict.fromkeys(known)) or spdx(first) or first
    return first if terms(first) and all(term in ALLOWED for term in terms(first)) else named or "unknown"


def spdx(words: str) -> str:
    """The SPDX name of a licence in words; nothing if it is not known."""
    return next((name for text, name in WORDS.items() if text in words.lower()), "")


def terms(expression: str) -> list[str]:
    """The licences of an expression that a user must keep: all of an AND, any of an OR that is allowed."""
    found = []
    for part in re.split(r"\s+AND\s+", expression.replace("(", "").replace(")", "")):
        choices = re.split(r"\s+OR\s+", part)
        found.append(next((choice for choice in choices if choice in ALLOWED), choices[0]))
    return [term for term in found if term]


def not_allowed(package: Package) -> list[str]:
    """The licences of a package that are not on the list."""
    if OTHER.get(package.name) == package.licence or package.name.startswith(CUDA):
        return []
    return [term for term in terms(package.licence) if term not in ALLOWED]


def advisories(packages: list[Package], database: str) -> dict[Package, list[str]]:
    """The ids of the known weaknesses of each package that has any; an OSError where there is no answer."""
    queries = [{"package": {"name": p.name, "ecosystem": "PyPI"}, "version": p.version} for p in packages]
    request = urllib.request.Request(
        database, json.dumps({"queries": queries}).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            results = json.load(answer)["results"]
        return {p: [v["id"] for v in found["vulns"]] for p, found in zip(packages, results) if found.get("vulns")}
    except (ValueError, KeyError, TypeError) as error:
        raise OSError(f"its answer cannot be read: {error}") from None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-advisories", action="store_true", help="licences alone, without the network")
    parser.add_argument("--strict", action="store_true", help="fail where the database cannot be reached")
    parser.add_argument("--database", default=DATABASE, metavar="URL", help=f"default: {DATABASE}")
    args = parser.parse_args(argv)
    packages = installed()
    wrong = 0
    for package in packages:
        bad = not_allowed(package)
        wrong += bool(bad)
        note = f"  NOT ALLOWED: {', '.join(bad)}" if bad else "  (an extra)" if package.name in OTHER else ""
        print(f"{package.name:40} {package.version:15} {package.licence}{note}")
    print(f"licences: {len(packages)} packages, {wrong} with a licence that is not on the list")
    if args.no_advisories:
        return 1 if wrong else 0
    try:
        found = advisories(packages, args.database)
    except (urllib.error.URLError, OSError) as error:
        print(f"advisories: not looked up, {args.database} cannot be reached ({getattr(error, 'reason', error)})")
        return 1 if wrong or args.strict else 0
    for package, ids in found.items():
        print(f"{package.name} {package.version}: {', '.join(ids)}")
    print(f"advisories: {len(packages)} packages, {len(found)} with a known weakness")
    return 1 if wrong or found else 0


if __name__ == "__main__":
    sys.exit(main())
