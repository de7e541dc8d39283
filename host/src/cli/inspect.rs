//! `byoc inspect`: what an artifact holds and needs.
