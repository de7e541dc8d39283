
Bv56JzAğAAyA#A¦A