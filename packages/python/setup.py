"""A wheel for any Python 3 of one platform: the library in it is linked to no Python. `packages/build` names the platform."""

import os

from setuptools import Distribution, setup

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel


class OfPlatform(Distribution):
    # Nothing is compiled here, but the library is of one platform all the same.
    def has_ext_modules(self):
        return True


class PlatformWheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", os.environ["ONEWRITE_WHEEL_PLATFORM"]


setup(distclass=OfPlatform, cmdclass={"bdist_wheel": PlatformWheel})
