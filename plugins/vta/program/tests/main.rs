//! Tests of layers, and of the search for their tilings.

mod layers;
mod resnet;
mod search;
