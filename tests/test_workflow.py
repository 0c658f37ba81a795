"""The GitHub workflow: valid, pinned, without secrets, and with commands that exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from scalebook.book import repository

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def lint(path):
    """Run the linter with the schema that it brings along (no network); return what it says of each problem, or ''."""
    done = subprocess.run([sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows",
                           "--color", "never", path], capture_output=True, text=True, check=False, timeout=60)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.stem)
def workflow(request):
    return yaml.safe_load(request.param.read_text(encoding="utf-8"))


def test_there_is_a_workflow():
    assert WORKFLOWS


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_the_linter_finds_nothing(path):
    assert lint(path) == ""


def test_the_linter_finds_a_job_without_a_machine(tmp_path):
    broken = re.sub(r" +runs-on: .*\n", "", WORKFLOWS[0].read_text(encoding="utf-8"), count=1)
    (tmp_path / "broken.yml").write_text(broken)
    assert "runs-on" in lint(tmp_path / "broken.yml")


def test_actions_are_github_s_own_and_pinned_to_a_commit(workflow):
    for step in steps(workflow):
        if "uses" in step:
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step["uses"]), step["uses"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_no_secret_is_needed_and_only_jobs_that_publish_may_write(path):
    assert "secrets" not in re.sub(r"#.*", "", path.read_text(encoding="utf-8"))
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        if "write" in job.get("permissions", {}).values():
            assert name in ("publish", "notebooks")
            assert "pull_request" in job["if"]
            assert "test" in job["needs"]


def test_every_make_target_exists_and_every_job_has_a_limit(workflow):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = [re.search(r"make (?:-\S+ )*(\S+)", step["run"])[1] for step in steps(workflow)
             if step.get("run", "").startswith("make")]
    assert {"test", "pdf", "environments"} <= set(named) <= set(targets)
    assert all(job["timeout-minutes"] <= 90 for job in workflow["jobs"].values())


def test_colab_opens_the_notebooks_from_the_branch_that_the_workflow_pushes(workflow):
    [step] = [step for step in workflow["jobs"]["notebooks"]["steps"] if "push" in step.get("run", "")]
    assert f"git switch --orphan {repository.NOTEBOOKS}\n" in step["run"]
    assert f"git push --force origin {repository.NOTEBOOKS}\n" in step["run"]
    assert "cp _build/html/colab/*.ipynb .\n" in step["run"]


def test_the_branch_holds_the_notebooks_and_nothing_else(workflow, tmp_path):
    """The step itself, in a repository of its own."""
    [step] = [step for step in workflow["jobs"]["notebooks"]["steps"] if "push" in step.get("run", "")]
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run([*git, "init", "--quiet", "--bare", origin], check=True)
    subprocess.run([*git, "clone", "--quiet", origin, clone], check=True, capture_output=True)
    (clone / "library.py").write_text("1")
    (clone / ".gitignore").write_text("_build/\n.venv*/\n")
    subprocess.run([*git, "add", "."], cwd=clone, check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", "first"], cwd=clone, check=True)
    (clone / "_build" / "html" / "colab").mkdir(parents=True)
    (clone / "_build" / "html" / "colab" / "00_a.ipynb").write_text("{}")
    for _ in range(2):  # and a second time, over the first
        subprocess.run(["bash", "-e", "-c", step["run"]], cwd=clone, check=True, capture_output=True,
                       env={"PATH": "/usr/bin:/bin", "GITHUB_SHA": "abc", "HOME": str(tmp_path)})
        listed = subprocess.run([*git, "--git-dir", origin, "ls-tree", "-r", "--name-only", "colab"], check=True,
                                capture_output=True, text=True)
        assert listed.stdout.split() == ["00_a.ipynb"]
        subprocess.run([*git, "checkout", "--quiet", "main"], cwd=clone, check=True)
        subprocess.run([*git, "branch", "--quiet", "-D", "colab"], cwd=clone, check=True)
