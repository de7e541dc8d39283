//! Metrics in the Prometheus text format, with Triton's names for metrics that Triton defines.

use crate::app::App;
use crate::served::ServedModel;
use crate::stats::{FailReason, Histogram, Numbers};
use byoc_ir::tensor::memory;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Counter of a model version: name, help text, value.
type Counter = (&'static str, &'static str, fn(&Numbers) -> u64);

const COUNTERS: [Counter; 8] = [
    ("nv_inference_request_success", "Successful requests", |n| n.success.count),
    ("nv_inference_count", "Items in successful requests", |n| n.inference_count),
    ("nv_inference_exec_count", "Model executions", |n| n.execution_count),
    ("nv_inference_request_duration_us", "Total duration of successful requests", |n| n.success.ns / 1000),
    ("nv_inference_queue_duration_us", "Total time in the queue", |n| n.queue.ns / 1000),
    ("nv_inference_compute_input_duration_us", "Total time to concatenate inputs", |n| n.compute_input.ns / 1000),
    ("nv_inference_compute_infer_duration_us", "Total duration of model executions", |n| n.compute_infer.ns / 1000),
    ("nv_inference_compute_output_duration_us", "Total time to split outputs", |n| n.compute_output.ns / 1000),
];

/// Histogram of a model version: name, help text, value.
type Distribution = (&'static str, &'static str, fn(&Numbers) -> &Histogram);

const HISTOGRAMS: [Distribution; 4] = [
    ("byoc_request_duration_us", "Request duration", |n| &n.request_us),
    ("byoc_queue_duration_us", "Time in the queue", |n| &n.queue_us),
    ("byoc_compute_duration_us", "Execution duration", |n| &n.compute_us),
    ("byoc_batch_size", "Items per execution", |n| &n.batch_sizes),
];

/// Returns the metrics in the Prometheus text format.
pub fn text(app: &App) -> String {
    let models: Vec<(Arc<ServedModel>, Numbers, String)> = app
        .repository
        .ready_models()
        .into_iter()
        .map(|model| {
            let mut labels = format!("model=\"{}\",version=\"{}\"", escape(&model.name), model.version);
            for (name, value) in &model.config.metric_tags {
                let _ = write!(labels, ",{name}=\"{}\"", escape(value));
            }
            let statistics = model.stats.numbers();
            (model, statistics, labels)
        })
        .collect();
    let mut text = String::new();
    for (name, help, value) in COUNTERS {
        write_head(&mut text, name, help, "counter");
        for (_, statistics, labels) in &models {
            let _ = writeln!(text, "{name}{{{labels}}} {}", value(statistics));
        }
    }
    write_head(&mut text, "nv_inference_request_failure", "Failed requests", "counter");
    for (_, statistics, labels) in &models {
        for ((_, reason), failure_count) in FailReason::ALL.iter().zip(statistics.failures) {
            let _ =
                writeln!(text, "nv_inference_request_failure{{{labels},reason=\"{reason}\"}} {}", failure_count.count);
        }
    }
    write_head(&mut text, "nv_inference_pending_request_count", "Requests in the queue", "gauge");
    for (models, _, labels) in &models {
        let _ = writeln!(text, "nv_inference_pending_request_count{{{labels}}} {}", models.scheduler.pending());
    }
    write_head(&mut text, "nv_model_load_duration_secs", "Duration of the last load", "gauge");
    for (_, statistics, labels) in &models {
        let _ = writeln!(text, "nv_model_load_duration_secs{{{labels}}} {}", statistics.load.as_secs_f64());
    }
    for (name, help, histogram) in HISTOGRAMS {
        write_head(&mut text, name, help, "histogram");
        for (_, statistics, labels) in &models {
            write_histogram(&mut text, name, labels, histogram(statistics));
        }
    }
    let name = "byoc_region_duration_us";
    write_head(&mut text, name, "Region duration in observed executions", "histogram");
    for (_, statistics, labels) in &models {
        for (region, histogram) in &statistics.regions_us {
            write_histogram(&mut text, name, &format!("{labels},region=\"{}\"", escape(region)), histogram);
        }
    }
    let connections = &app.connections;
    let values = [
        ("byoc_connections", "Open connections", "gauge", connections.open.load(Ordering::Relaxed) as u64),
        (
            "byoc_connections_refused",
            "Connections closed because of the limit",
            "counter",
            connections.refused.load(Ordering::Relaxed),
        ),
        ("byoc_memory_used_bytes", "Memory used by requests, tensors and arenas", "gauge", memory::used() as u64),
        ("byoc_memory_limit_bytes", "Memory limit for requests, tensors and arenas", "gauge", memory::limit() as u64),
    ];
    for (name, help, kind, value) in values {
        write_head(&mut text, name, help, kind);
        let _ = writeln!(text, "{name} {value}");
    }
    text
}

fn write_head(text: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn write_histogram(text: &mut String, name: &str, labels: &str, histogram: &Histogram) {
    let mut cumulative_count = 0;
    for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
        cumulative_count += count;
        let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {cumulative_count}");
    }
    cumulative_count += histogram.counts.last().copied().unwrap_or_default();
    let _ = writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {cumulative_count}");
    let _ = writeln!(text, "{name}_sum{{{labels}}} {}\n{name}_count{{{labels}}} {cumulative_count}", histogram.sum);
}

/// Escapes a label value.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
