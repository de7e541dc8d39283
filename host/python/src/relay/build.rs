//! Compilation of modules that Python programs have built.
