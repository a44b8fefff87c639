"""Which packages there are: the four folders at the top level, installed as hierfl and below it, and their rooms."""

from setuptools import find_packages, setup

FOLDERS = {
    "hierfl": "hierfl",
    "hierfl.inference": "inference",
    "hierfl.models": "models",
    "hierfl.experiments": "experiments",
}

setup(
    package_dir=FOLDERS,
    packages=[
        package
        for name, folder in FOLDERS.items()
        for package in (name, *(f"{name}.{inside}" for inside in find_packages(folder)))
    ],
)
