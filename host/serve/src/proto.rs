//! Messages of `inference.GRPCInferenceService` and of `grpc.health.v1.Health`, with Triton's field numbers. If
//! KServe's version of a message has different fields, the message has the fields of both versions.
//!
//! [`MESSAGES`] is generated from the same tokens as the messages; a test compares it with the documented protocol
//! fields.
#![expect(missing_docs, reason = "the protocol documents the fields")]

use bytes::Bytes;
use prost::Message;
use std::collections::BTreeMap;

macro_rules! messages {
    ($($(#[$meta:meta])* $name:ident { $($(#[$attr:meta])+ $field:ident: $ty:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, PartialEq, Message)]
            pub struct $name { $($(#[$attr])+ pub $field: $ty,)* }

            byoc::io::layout!($name { $(concat!($(stringify!($attr)),+) => $ty,)* });
        )*

        /// Messages by name, with field names and field attributes (type and number).
        pub const MESSAGES: &[(&str, &[(&str, &str)])] =
            &[$((stringify!($name), &[$((stringify!($field), concat!($(stringify!($attr)),+)),)*]),)*];
    };
}

macro_rules! choices {
    ($($name:ident { $(#[$attr:meta] $variant:ident($ty:ty),)* })*) => {
        $(
            #[derive(Clone, PartialEq, prost::Oneof)]
            pub enum $name { $(#[$attr] $variant($ty),)* }

            byoc::io::choice_layout!($name);
        )*

        /// Oneof types by name, with the attributes of their variants.
        pub const CHOICES: &[(&str, &[&str])] = &[$((stringify!($name), &[$(stringify!($attr),)*]),)*];
    };
}

messages! {
    Empty {}
    ServerLiveResponse { #[prost(bool, tag = "1")] live: bool, }
    ReadyResponse { #[prost(bool, tag = "1")] ready: bool, }
    /// Request for ModelReady, ModelMetadata, ModelConfig and ModelStatistics.
    ModelRequest {
        #[prost(string, tag = "1")] name: String,
        #[prost(string, tag = "2")] version: String,
    }
    ServerMetadataResponse {
        #[prost(string, tag = "1")] name: String,
        #[prost(string, tag = "2")] version: String,
        #[prost(string, repeated, tag = "3")] extensions: Vec<String>,
    }
    ModelMetadataResponse {
        #[prost(string, tag = "1")] name: String,
        #[prost(string, repeated, tag = "2")] versions: Vec<String>,
        #[prost(string, tag = "3")] platform: String,
        #[prost(message, repeated, tag = "4")] inputs: Vec<TensorMetadata>,
        #[prost(message, repeated, tag = "5")] outputs: Vec<TensorMetadata>,
        #[prost(btree_map = "string, string", tag = "6")] properties: BTreeMap<String, String>,
    }
    TensorMetadata {
        #[prost(string, tag = "1")] name: String,
        #[prost(string, tag = "2")] datatype: String,
        #[prost(int64, repeated, tag = "3")] shape: Vec<i64>,
    }
    InferParameter {
        #[prost(oneof = "ParameterChoice", tags = "1, 2, 3, 4, 5")] choice: Option<ParameterChoice>,
    }
    InferTensorContents {
        #[prost(bool, repeated, tag = "1")] bool_contents: Vec<bool>,
        #[prost(int32, repeated, tag = "2")] int_contents: Vec<i32>,
        #[prost(int64, repeated, tag = "3")] int64_contents: Vec<i64>,
        #[prost(uint32, repeated, tag = "4")] uint_contents: Vec<u32>,
        #[prost(uint64, repeated, tag = "5")] uint64_contents: Vec<u64>,
        #[prost(float, repeated, tag = "6")] fp32_contents: Vec<f32>,
        #[prost(double, repeated, tag = "7")] fp64_contents: Vec<f64>,
        #[prost(bytes = "bytes", repeated, tag = "8")] bytes_contents: Vec<Bytes>,
    }
    ModelInferRequest {
        #[prost(string, tag = "1")] model_name: String,
        #[prost(string, tag = "2")] model_version: String,
        #[prost(string, tag = "3")] id: String,
        #[prost(btree_map = "string, message", tag = "4")] parameters: BTreeMap<String, InferParameter>,
        #[prost(message, repeated, tag = "5")] inputs: Vec<InferTensor>,
        #[prost(message, repeated, tag = "6")] outputs: Vec<InferRequestedOutput>,
        #[prost(bytes = "bytes", repeated, tag = "7")] raw_input_contents: Vec<Bytes>,
    }
    /// Input of a request or output of a response.
    InferTensor {
        #[prost(string, tag = "1")] name: String,
        #[prost(string, tag = "2")] datatype: String,
        #[prost(int64, repeated, tag = "3")] shape: Vec<i64>,
        #[prost(btree_map = "string, message", tag = "4")] parameters: BTreeMap<String, InferParameter>,
        #[prost(message, optional, tag = "5")] contents: Option<InferTensorContents>,
    }
    InferRequestedOutput {
        #[prost(string, tag = "1")] name: String,
        #[prost(btree_map = "string, message", tag = "2")] parameters: BTreeMap<String, InferParameter>,
    }
    ModelInferResponse {
        #[prost(string, tag = "1")] model_name: String,
        #[prost(string, tag = "2")] model_version: String,
        #[prost(string, tag = "3")] id: String,
        #[prost(btree_map = "string, message", tag = "4")] parameters: BTreeMap<String, InferParameter>,
        #[prost(message, repeated, tag = "5")] outputs: Vec<InferTensor>,
        #[prost(bytes = "bytes", repeated, tag = "6")] raw_output_contents: Vec<Bytes>,
    }
    ModelConfigResponse { #[prost(message, optional, tag = "1")] config: Option<ModelConfig>, }
    ModelStatisticsResponse { #[prost(message, repeated, tag = "1")] model_stats: Vec<ModelStatistics>, }
    StatisticDuration {
        #[prost(uint64, tag = "1")] count: u64,
        #[prost(uint64, tag = "2")] ns: u64,
    }
    ModelStatistics {
        #[prost(string, tag = "1")] name: String,
        #[prost(string, tag = "2")] version: String,
        #[prost(uint64, tag = "3")] last_inference: u64,
        #[prost(uint64, tag = "4")] inference_count: u64,
        #[prost(uint64, tag = "5")] execution_count: u64,
        #[prost(message, optional, tag = "6")] inference_stats: Option<InferStatistics>,
        #[prost(message, repeated, tag = "7")] batch_stats: Vec<InferBatchStatistics>,
        #[prost(message, repeated, tag = "8")] memory_usage: Vec<MemoryUsage>,
        #[prost(btree_map = "string, message", tag = "9")] response_stats: BTreeMap<String, InferResponseStatistics>,
    }
    InferResponseStatistics {
        #[prost(message, optional, tag = "1")] compute_infer: Option<StatisticDuration>,
        #[prost(message, optional, tag = "2")] compute_output: Option<StatisticDuration>,
        #[prost(message, optional, tag = "3")] success: Option<StatisticDuration>,
        #[prost(message, optional, tag = "4")] fail: Option<StatisticDuration>,
        #[prost(message, optional, tag = "5")] empty_response: Option<StatisticDuration>,
        #[prost(message, optional, tag = "6")] cancel: Option<StatisticDuration>,
    }
    InferStatistics {
        #[prost(message, optional, tag = "1")] success: Option<StatisticDuration>,
        #[prost(message, optional, tag = "2")] fail: Option<StatisticDuration>,
        #[prost(message, optional, tag = "3")] queue: Option<StatisticDuration>,
        #[prost(message, optional, tag = "4")] compute_input: Option<StatisticDuration>,
        #[prost(message, optional, tag = "5")] compute_infer: Option<StatisticDuration>,
        #[prost(message, optional, tag = "6")] compute_output: Option<StatisticDuration>,
        #[prost(message, optional, tag = "7")] cache_hit: Option<StatisticDuration>,
        #[prost(message, optional, tag = "8")] cache_miss: Option<StatisticDuration>,
    }
    InferBatchStatistics {
        #[prost(uint64, tag = "1")] batch_size: u64,
        #[prost(message, optional, tag = "2")] compute_input: Option<StatisticDuration>,
        #[prost(message, optional, tag = "3")] compute_infer: Option<StatisticDuration>,
        #[prost(message, optional, tag = "4")] compute_output: Option<StatisticDuration>,
    }
    MemoryUsage {
        #[prost(string, tag = "1")] kind: String,
        #[prost(int64, tag = "2")] id: i64,
        #[prost(uint64, tag = "3")] byte_size: u64,
    }
    RepositoryIndexRequest {
        #[prost(string, tag = "1")] repository_name: String,
        #[prost(bool, tag = "2")] ready: bool,
    }
    RepositoryIndexResponse { #[prost(message, repeated, tag = "1")] models: Vec<ModelIndex>, }
    ModelIndex {
        #[prost(string, tag = "1")] name: String,
        #[prost(string, tag = "2")] version: String,
        #[prost(string, tag = "3")] state: String,
        #[prost(string, tag = "4")] reason: String,
    }
    /// Request for RepositoryModelLoad and RepositoryModelUnload. KServe's version has the model name in field 1.
    RepositoryModelRequest {
        #[prost(string, tag = "1")] repository_name: String,
        #[prost(string, tag = "2")] model_name: String,
        #[prost(btree_map = "string, message", tag = "3")] parameters: BTreeMap<String, ModelRepositoryParameter>,
    }
    /// Response of RepositoryModelLoad and RepositoryModelUnload: empty in Triton's version, with these fields in
    /// KServe's.
    RepositoryModelResponse {
        #[prost(string, tag = "1")] model_name: String,
        #[prost(bool, tag = "2")] done: bool,
    }
    ModelRepositoryParameter {
        #[prost(oneof = "RepositoryParameterChoice", tags = "1, 2, 3, 4")] choice: Option<RepositoryParameterChoice>,
    }
    /// Request for SystemSharedMemoryStatus and SystemSharedMemoryUnregister.
    SharedMemoryRequest { #[prost(string, tag = "1")] name: String, }
    SharedMemoryStatusResponse {
        #[prost(btree_map = "string, message", tag = "1")] regions: BTreeMap<String, SharedMemoryRegion>,
    }
    /// Status of a region, and the request for SystemSharedMemoryRegister.
    SharedMemoryRegion {
        #[prost(string, tag = "1")] name: String,
        #[prost(string, tag = "2")] key: String,
        #[prost(uint64, tag = "3")] offset: u64,
        #[prost(uint64, tag = "4")] byte_size: u64,
    }
    LogSettings { #[prost(btree_map = "string, message", tag = "1")] settings: BTreeMap<String, LogSetting>, }
    LogSetting { #[prost(oneof = "LogSettingChoice", tags = "1, 2, 3")] choice: Option<LogSettingChoice>, }
    HealthCheckResponse { #[prost(int32, tag = "1")] status: i32, }

    ModelConfig {
        #[prost(string, tag = "1")] name: String,
        #[prost(string, tag = "2")] platform: String,
        #[prost(message, optional, tag = "3")] version_policy: Option<ModelVersionPolicy>,
        #[prost(int32, tag = "4")] max_batch_size: i32,
        #[prost(message, repeated, tag = "5")] input: Vec<ModelInput>,
        #[prost(message, repeated, tag = "6")] output: Vec<ModelOutput>,
        #[prost(message, repeated, tag = "7")] instance_group: Vec<ModelInstanceGroup>,
        #[prost(string, tag = "8")] default_model_filename: String,
        #[prost(btree_map = "string, string", tag = "10")] metric_tags: BTreeMap<String, String>,
        #[prost(message, optional, tag = "11")] dynamic_batching: Option<ModelDynamicBatching>,
        #[prost(btree_map = "string, message", tag = "14")] parameters: BTreeMap<String, ModelParameter>,
        #[prost(message, repeated, tag = "16")] model_warmup: Vec<ModelWarmup>,
        #[prost(string, tag = "17")] backend: String,
        #[prost(message, optional, tag = "19")] model_transaction_policy: Option<ModelTransactionPolicy>,
    }
    ModelWarmup {
        #[prost(string, tag = "1")] name: String,
        #[prost(uint32, tag = "2")] batch_size: u32,
        #[prost(btree_map = "string, message", tag = "3")] inputs: BTreeMap<String, WarmupInput>,
        #[prost(uint32, tag = "4")] count: u32,
    }
    WarmupInput {
        #[prost(int32, tag = "1")] data_type: i32,
        #[prost(int64, repeated, tag = "2")] dims: Vec<i64>,
        #[prost(bool, tag = "3")] zero_data: bool,
        #[prost(bool, tag = "4")] random_data: bool,
        #[prost(string, tag = "5")] input_data_file: String,
    }
    ModelParameter { #[prost(string, tag = "1")] string_value: String, }
    ModelTransactionPolicy { #[prost(bool, tag = "1")] decoupled: bool, }
    ModelInput {
        #[prost(string, tag = "1")] name: String,
        #[prost(int32, tag = "2")] data_type: i32,
        #[prost(int32, tag = "3")] format: i32,
        #[prost(int64, repeated, tag = "4")] dims: Vec<i64>,
        #[prost(message, optional, tag = "5")] reshape: Option<ModelTensorReshape>,
        #[prost(bool, tag = "6")] is_shape_tensor: bool,
        #[prost(bool, tag = "7")] allow_ragged_batch: bool,
        #[prost(bool, tag = "8")] optional: bool,
        #[prost(bool, tag = "9")] is_non_linear_format_io: bool,
    }
    ModelOutput {
        #[prost(string, tag = "1")] name: String,
        #[prost(int32, tag = "2")] data_type: i32,
        #[prost(int64, repeated, tag = "3")] dims: Vec<i64>,
        #[prost(string, tag = "4")] label_filename: String,
        #[prost(message, optional, tag = "5")] reshape: Option<ModelTensorReshape>,
        #[prost(bool, tag = "6")] is_shape_tensor: bool,
        #[prost(bool, tag = "7")] is_non_linear_format_io: bool,
    }
    ModelTensorReshape { #[prost(int64, repeated, tag = "1")] shape: Vec<i64>, }
    ModelVersionPolicy {
        #[prost(oneof = "VersionPolicyChoice", tags = "1, 2, 3")] choice: Option<VersionPolicyChoice>,
    }
    LatestVersions { #[prost(uint32, tag = "1")] num_versions: u32, }
    SpecificVersions { #[prost(int64, repeated, tag = "1")] versions: Vec<i64>, }
    ModelInstanceGroup {
        #[prost(string, tag = "1")] name: String,
        #[prost(int32, tag = "2")] count: i32,
        #[prost(int32, tag = "4")] kind: i32,
    }
    ModelDynamicBatching {
        #[prost(int32, repeated, tag = "1")] preferred_batch_size: Vec<i32>,
        #[prost(uint64, tag = "2")] max_queue_delay_microseconds: u64,
        #[prost(bool, tag = "3")] preserve_ordering: bool,
        #[prost(uint64, tag = "4")] priority_levels: u64,
        #[prost(uint64, tag = "5")] default_priority_level: u64,
        #[prost(message, optional, tag = "6")] default_queue_policy: Option<ModelQueuePolicy>,
        #[prost(btree_map = "uint64, message", tag = "7")] priority_queue_policy: BTreeMap<u64, ModelQueuePolicy>,
    }
    ModelQueuePolicy {
        #[prost(int32, tag = "1")] timeout_action: i32,
        #[prost(uint64, tag = "2")] default_timeout_microseconds: u64,
        #[prost(bool, tag = "3")] allow_timeout_override: bool,
        #[prost(uint32, tag = "4")] max_queue_size: u32,
    }
}

choices! {
    ParameterChoice {
        #[prost(bool, tag = "1")] Bool(bool),
        #[prost(int64, tag = "2")] Int(i64),
        #[prost(string, tag = "3")] Text(String),
        #[prost(double, tag = "4")] Float(f64),
        #[prost(uint64, tag = "5")] Uint(u64),
    }
    RepositoryParameterChoice {
        #[prost(bool, tag = "1")] Bool(bool),
        #[prost(int64, tag = "2")] Int(i64),
        #[prost(string, tag = "3")] Text(String),
        #[prost(bytes = "bytes", tag = "4")] Bytes(Bytes),
    }
    LogSettingChoice {
        #[prost(bool, tag = "1")] Bool(bool),
        #[prost(uint32, tag = "2")] Uint(u32),
        #[prost(string, tag = "3")] Text(String),
    }
    VersionPolicyChoice {
        #[prost(message, tag = "1")] Latest(LatestVersions),
        #[prost(message, tag = "2")] All(Empty),
        #[prost(message, tag = "3")] Specific(SpecificVersions),
    }
}
