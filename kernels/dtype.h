// The dtypes of the C interface; engine/native/__init__.py has the same numbers.
#pragma once

enum Dtype : int { kFp32 = 0, kBf16 = 1, kFp16 = 2 };
