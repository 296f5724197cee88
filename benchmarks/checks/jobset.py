"""Checks that launch/jobset.yaml keeps to JobSet's schema, as Kubernetes would.

    pip install jsonschema pyyaml
    python benchmarks/checks/jobset.py jobset.x-k8s.io_jobsets.yaml

The schema is the CustomResourceDefinition of https://github.com/kubernetes-sigs/jobset, in its folder
config/components/crd/bases. Fields that the schema does not have are errors, as with
`kubectl --validate=strict`.
"""

import sys
from pathlib import Path
from typing import Any

import jsonschema
import yaml

ROOT = Path(__file__).resolve().parents[2]


def strict(schema: Any) -> Any:
  """The schema, in which objects with named fields have no others; any metadata goes, as in a cluster's."""
  if isinstance(schema, list):
    return [strict(part) for part in schema]
  if not isinstance(schema, dict):
    return schema
  made = {name: strict(part) for name, part in schema.items()}
  if schema.get("x-kubernetes-int-or-string"):
    made.pop("type", None)
  if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
    made.setdefault("additionalProperties", False)
  fields = made.get("properties", {})
  if isinstance(fields, dict) and fields.get("metadata") == {"type": "object"}:
    fields["metadata"] = True
  return made


def main() -> None:
  resource = yaml.safe_load(Path(sys.argv[1]).read_text())
  manifest = yaml.safe_load((ROOT / "launch" / "jobset.yaml").read_text())
  version = manifest["apiVersion"].partition("/")[2]
  schemas = {own["name"]: own["schema"]["openAPIV3Schema"] for own in resource["spec"]["versions"]}
  found = list(jsonschema.Draft7Validator(strict(schemas[version])).iter_errors(manifest))
  for error in found:
    print("/".join(map(str, error.path)), error.message[:200])
  raise SystemExit(f"{len(found)} errors" if found else 0)


if __name__ == "__main__":
  main()
