POINTER_FAULTS: dict[int, str]
