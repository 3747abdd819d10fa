"""The compiled operators of mmcv, where it was installed without them."""

import types


class MissingOperators(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*_, **__):
            raise NotImplementedError(f"mmcv was installed without its operator {name}")

        return refuse
