"""A wheel for any Python 3 of one platform: the library in it is linked to no Python. `packages/build` sets both variables."""

import os

from setuptools import setup

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel


class PlatformWheel(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", os.environ["ONEWRITE_WHEEL_PLATFORM"]


setup(version=os.environ["ONEWRITE_VERSION"], cmdclass={"bdist_wheel": PlatformWheel})
