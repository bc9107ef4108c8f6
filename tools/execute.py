"""Run notebooks in their own folder and store them in one canonical form, so that a diff shows what changed.

python tools/execute.py NOTEBOOK…          run each in a fresh kernel and write it back
python tools/execute.py --fix NOTEBOOK…    write the canonical form without running
python tools/execute.py --check NOTEBOOK…  say which are not canonical; write nothing
"""

import argparse
import sys
import time
from pathlib import Path

import nbformat

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
KEPT = ("jupyter", "mystnb", "nbgrader", "tags")  # of a cell's metadata; the rest is an editor's or a run's trace
WIDGET = "application/vnd.jupyter.widget-view+json"  # names a model of a kernel that is gone
FOLDS = {  # the page's tag, JupyterLab's field
    "hide-input": "source_hidden", "remove-input": "source_hidden", "hide-output": "outputs_hidden"}


def canonical(notebook):
    """The notebook's canonical text: what a run leaves behind by chance is dropped, and equal content is equal bytes."""
    notebook = nbformat.from_dict(notebook)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    for number, cell in enumerate(notebook.cells, start=1):
        cell.id = f"cell-{number:02d}"
        cell.source = "\n".join(line.rstrip() for line in cell.source.rstrip().split("\n"))
        cell.metadata = nbformat.from_dict({name: cell.metadata[name] for name in KEPT if name in cell.metadata})
        if cell.cell_type == "code":
            fold(cell.metadata)
            cell.outputs = merged(cell.outputs)
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def fold(metadata):
    """What the page folds, JupyterLab folds too."""
    folds = {field: True for tag, field in FOLDS.items() if tag in metadata.get("tags", [])}
    if folds:
        metadata["jupyter"] = folds
    else:
        metadata.pop("jupyter", None)


def merged(outputs):
    """The outputs with neighbouring pieces of one stream joined, and without references to a kernel's widgets."""
    result = []
    for output in outputs:
        if output.output_type == "stream" and result and result[-1].get("name") == output.name:
            result[-1].text += output.text
            continue
        if "data" in output:
            output.data.pop(WIDGET, None)
            output.metadata.pop(WIDGET, None)
        output.pop("transient", None)
        result.append(output)
    return result


def run(notebook, folder):
    """Execute every cell in a fresh kernel whose working directory is `folder`; exits at the first error."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(notebook, kernel_name=KERNEL["name"], resources={"metadata": {"path": str(folder)}},
                            timeout=600, record_timing=False, store_widget_state=False)
    try:
        client.execute()
    except CellExecutionError as error:
        sys.exit(f"\n{error}\nNothing was stored.")


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Run notebooks and store them in canonical form.")
    parser.add_argument("notebooks", nargs="*", type=Path)
    parser.add_argument("--fix", action="store_true", help="write the canonical form without running")
    parser.add_argument("--check", action="store_true", help="say which are not canonical; write nothing")
    options = parser.parse_args(arguments)
    if not options.notebooks:
        print("No notebook yet: nothing to run.")
    changed = []
    for path in options.notebooks:
        before = path.read_text("utf-8")
        notebook = nbformat.reads(before, as_version=4)
        if not (options.fix or options.check):
            print(f"Running {path} …", end="", flush=True)
            start = time.perf_counter()
            run(notebook, path.parent)
            print(f" {time.perf_counter() - start:.0f} s")
        after = canonical(notebook)
        if after != before:
            changed.append(path)
            if options.check:
                print(f"{path} is not canonical: python tools/execute.py --fix {path}")
            else:
                path.write_text(after, "utf-8")
    return 1 if options.check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
