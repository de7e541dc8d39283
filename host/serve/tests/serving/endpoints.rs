//! Tests of the protocol endpoints: health, metadata, configuration, statistics, settings, metrics.

use crate::client::input;
use crate::models::{serve, serve_repository, write};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;

#[test]
fn health_and_metadata() {
    let server = serve(&["relu", "fixed", "scalar"], &["--allow-shared-memory"]);
    let mut client = server.client();
    assert_eq!(client.get("/v2/health/live").ok().json(), json!({"live": true}));
    assert_eq!(client.get("/v2/health/ready").ok().json(), json!({"ready": true}));
    let metadata = client.get("/v2").ok().json();
    assert_eq!((&metadata["name"], &metadata["version"]), (&json!("byoc"), &json!(env!("CARGO_PKG_VERSION"))));
    let extensions = metadata["extensions"].as_array().unwrap();
    assert!(extensions.contains(&json!("binary_tensor_data")) && extensions.contains(&json!("system_shared_memory")));
    // The extension requires --allow-control.
    assert!(!extensions.contains(&json!("model_repository")));
    assert_eq!(client.get("/v2/models").ok().json(), json!({"models": ["fixed", "relu", "scalar"]}));
    let relu = json!({
        "name": "relu", "versions": ["1"], "platform": "byoc",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "output_0", "datatype": "FP32", "shape": [-1, 4]}],
    });
    for path in ["/v2/models/relu", "/v2/models/relu/versions/1"] {
        assert_eq!(client.get(path).ok().json(), relu, "{path}");
    }
    assert_eq!(client.get("/v2/models/fixed").ok().json()["inputs"][0]["shape"], json!([1, 3]));
    assert_eq!(client.get("/v2/models/scalar").ok().json()["inputs"][0]["shape"], json!([]));
    for path in ["/v2/models/relu/ready", "/v2/models/relu/versions/1/ready"] {
        assert_eq!(client.get(path).ok().json(), json!({"name": "relu", "ready": true}), "{path}");
    }
}

#[test]
fn unknown_paths_methods_and_models() {
    let server = serve(&["relu"], &[]);
    let mut client = server.client();
    for path in
        ["/", "/v1", "/v2/", "/v2/models/relu/", "/v2/health", "/v2/models/relu/versions/x", "/v2/models/relu/nothing"]
    {
        assert_eq!(client.get(path).error(404), "Not Found", "{path}");
    }
    for (method, path) in
        [("POST", "/v2"), ("GET", "/v2/models/relu/infer"), ("PUT", "/v2/logging"), ("DELETE", "/v2/models/relu")]
    {
        assert_eq!(client.request(method, path, &[], b"").error(405), "Method Not Allowed", "{method} {path}");
    }
    for path in [
        "/v2/models/nope",
        "/v2/models/nope/ready",
        "/v2/models/nope/config",
        "/v2/models/nope/stats",
        "/v2/models/nope/explain",
    ] {
        let message = client.get(path).error(404);
        assert!(message.starts_with("Request for unknown model: 'nope' is not found"), "{message}");
    }
    for version in ["2", "0", "01", "99999999999999999999"] {
        let message = client.get(&format!("/v2/models/relu/versions/{version}")).error(404);
        assert!(message.contains(&format!("version {version} is not found; it has version(s) [1]")), "{message}");
    }
    for name in ["..%2f..%2fetc", "%2e%2e", "%ff"] {
        let reply = client.get(&format!("/v2/models/{name}"));
        assert!([400, 404].contains(&reply.status), "{name}: {}", reply.status);
        reply.error(reply.status);
    }
    let message = client.infer("nope", &json!({"inputs": []})).error(404);
    assert!(message.contains("'nope' is not found"), "{message}");
    // Unsupported endpoints return an explanatory error.
    for (method, path) in [
        ("GET", "/v2/cudasharedmemory/status"),
        ("GET", "/v2/cudasharedmemory/region/r/status"),
        ("POST", "/v2/cudasharedmemory/region/r/register"),
        ("POST", "/v2/cudasharedmemory/unregister"),
        ("POST", "/v2/cudasharedmemory/region/r/unregister"),
        ("GET", "/v2/trace/setting"),
        ("POST", "/v2/trace/setting"),
        ("GET", "/v2/models/relu/trace/setting"),
        ("POST", "/v2/models/relu/trace/setting"),
        ("POST", "/v2/models/relu/generate"),
        ("POST", "/v2/models/relu/versions/1/generate"),
        ("POST", "/v2/models/relu/generate_stream"),
        ("POST", "/v2/models/relu/versions/1/generate_stream"),
    ] {
        let message = client.request(method, path, &[], b"").error(501);
        assert!(message.contains("not s"), "{path}: {message}");
    }
    for path in ["index", "models/relu/load", "models/relu/unload"] {
        let message = client.post(&format!("/v2/repository/other/{path}"), &json!({})).error(404);
        assert!(message.contains("expected a request without a repository"), "{path}: {message}");
    }
    assert!(client.get("/v2/models/relu").ok().json()["name"] == "relu");
}

#[test]
fn configuration_is_completed_from_the_model() {
    let server =
        serve(&["relu", "fixed"], &["--max-batch-size", "8", "--preferred-batch-size", "4,8", "--instances", "2"]);
    let mut client = server.client();
    let config = client.get("/v2/models/relu/config").ok().json();
    assert_eq!(config, client.get("/v2/models/relu/versions/1/config").ok().json());
    assert_eq!((&config["max_batch_size"], &config["input"][0]["dims"]), (&json!(8), &json!([4])));
    assert_eq!(config["input"][0]["data_type"], "TYPE_FP32");
    assert_eq!(config["input"][0]["optional"], false);
    assert_eq!(config["dynamic_batching"]["preferred_batch_size"], json!([4, 8]));
    assert_eq!(config["instance_group"][0]["count"], 2);
    assert_eq!(config["model_transaction_policy"]["decoupled"], false);
    let fixed_config = client.get("/v2/models/fixed/config").ok().json();
    assert_eq!((&fixed_config["max_batch_size"], &fixed_config["input"][0]["dims"]), (&json!(0), &json!([1, 3])));
    assert!(fixed_config.get("dynamic_batching").is_none());
}

#[test]
fn statistics_count_requests_items_and_executions() {
    let server = serve(&["relu", "fixed"], &[]);
    let mut client = server.client();
    for rows in [1, 3] {
        client.infer("relu", &json!({"inputs": [input("x", &[rows, 4], &vec![0.0; rows * 4])]})).ok();
    }
    client.infer("relu", &json!({"inputs": []})).error(400);
    let all_stats = client.get("/v2/models/stats").ok().json();
    assert_eq!(all_stats["model_stats"].as_array().unwrap().len(), 2);
    for path in ["/v2/models/relu/stats", "/v2/models/relu/versions/1/stats"] {
        let stats = client.get(path).ok().json()["model_stats"][0].clone();
        assert_eq!((&stats["name"], &stats["version"]), (&json!("relu"), &json!("1")));
        assert_eq!((&stats["inference_count"], &stats["execution_count"]), (&json!(4), &json!(2)));
        assert!(stats["last_inference"].as_u64().unwrap() > 1_600_000_000_000);
        for (name, count) in [
            ("success", 2),
            ("fail", 1),
            ("queue", 2),
            ("compute_input", 2),
            ("compute_infer", 2),
            ("compute_output", 2),
            ("cache_hit", 0),
            ("cache_miss", 0),
        ] {
            assert_eq!(stats["inference_stats"][name]["count"], count, "{name}");
            assert!(stats["inference_stats"][name]["ns"].is_u64(), "{name}");
        }
        let sizes: Vec<_> =
            stats["batch_stats"].as_array().unwrap().iter().map(|batch| batch["batch_size"].clone()).collect();
        assert_eq!(sizes, [1, 3]);
        let response = &stats["response_stats"]["0"];
        assert_eq!((&response["success"]["count"], &response["fail"]["count"]), (&json!(2), &json!(1)));
        assert_eq!((&response["cancel"]["count"], &response["empty_response"]["count"]), (&json!(0), &json!(0)));
        let memory = &stats["memory_usage"][0];
        assert!(memory["type"] == "CPU" && memory["id"] == 0 && memory["byte_size"].is_u64(), "{memory}");
    }
}

#[test]
fn metrics_are_prometheus_text() {
    let server = serve(&["relu"], &["--metrics", "0"]);
    let mut client = server.client();
    client.infer("relu", &json!({"inputs": [input("x", &[2, 4], &[0.0; 8])]})).ok();
    client.infer("relu", &json!({"inputs": []})).error(400);
    let mut other = crate::client::Client::connect(server.metrics.unwrap());
    assert_eq!(other.get("/v2").error(404), "Not Found");
    for reply in [client.get("/metrics").ok(), other.get("/metrics").ok()] {
        assert!(reply.headers["content-type"].starts_with("text/plain; version=0.0.4"));
        let text = String::from_utf8(reply.body).unwrap();
        for line in [
            "# TYPE nv_inference_request_success counter",
            "nv_inference_request_success{model=\"relu\",version=\"1\"} 1",
            "nv_inference_count{model=\"relu\",version=\"1\"} 2",
            "nv_inference_exec_count{model=\"relu\",version=\"1\"} 1",
            "nv_inference_request_failure{model=\"relu\",version=\"1\",reason=\"OTHER\"} 1",
            "nv_inference_request_failure{model=\"relu\",version=\"1\",reason=\"REJECTED\"} 0",
            "nv_inference_pending_request_count{model=\"relu\",version=\"1\"} 0",
            "byoc_batch_size_bucket{model=\"relu\",version=\"1\",le=\"2\"} 1",
            "byoc_batch_size_count{model=\"relu\",version=\"1\"} 1",
            "byoc_request_duration_us_count{model=\"relu\",version=\"1\"} 2",
        ] {
            assert!(text.lines().any(|actual| actual == line), "{line}\n{text}");
        }
        // Each sample has a name, labels in braces, and a number.
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok() && name.matches('"').count() % 2 == 0, "{line}");
        }
    }
}

#[test]
fn explanation_as_json_and_as_page() {
    let server = serve(&["relu"], &[]);
    let mut client = server.client();
    let explanation = client.get("/v2/models/relu/explain").ok().json();
    assert_eq!(explanation["nodes"][0]["op"], "nn.relu");
    assert_eq!(explanation["nodes"][0]["placement"]["kind"], "host");
    for reply in [
        client.get("/v2/models/relu/explain?format=html").ok(),
        client.request("GET", "/v2/models/relu/versions/1/explain", &[("Accept", "text/html,*/*")], b"").ok(),
    ] {
        assert_eq!(reply.headers["content-type"], "text/html; charset=utf-8");
        assert!(String::from_utf8(reply.body).unwrap().contains("nn.relu"));
    }
}

#[test]
fn log_settings_are_read_and_changed() {
    let server = serve(&["relu"], &[]);
    let mut client = server.client();
    let settings_before = client.get("/v2/logging").ok().json();
    assert_eq!((&settings_before["log_info"], &settings_before["log_verbose_level"]), (&json!(true), &json!(0)));
    let settings_after = client.post("/v2/logging", &json!({"log_info": false, "log_verbose_level": 1})).ok().json();
    assert_eq!((&settings_after["log_info"], &settings_after["log_verbose_level"]), (&json!(false), &json!(1)));
    for (setting, expected) in [
        (json!({"log_info": 3}), "'log_info': expected true or false, found 3"),
        (json!({"log_verbose_level": -1}), "expected an integer >= 0, found -1"),
        (json!({"log_file": "/tmp/x"}), "standard error"),
        (json!({"log_level": 1}), "expected a log setting such as log_info, found 'log_level'"),
        (json!([1]), "parse"),
    ] {
        let message = client.post("/v2/logging", &setting).error(400);
        assert!(message.contains(expected), "{message}");
    }
    // A request with an invalid setting changes no setting.
    client.post("/v2/logging", &json!({"log_error": false, "log_warning": 1})).error(400);
    assert_eq!(client.get("/v2/logging").ok().json()["log_error"], true);
}

#[test]
fn a_model_that_cannot_be_loaded_leaves_the_others() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("good/1/model.relay"), "relu");
    std::fs::create_dir_all(dir.path().join("bad/1")).unwrap();
    std::fs::write(dir.path().join("bad/1/model.onnx"), b"garbage").unwrap();
    std::fs::create_dir_all(dir.path().join("empty")).unwrap();
    let server = serve_repository(dir, &[]);
    let mut client = server.client();
    client.infer("good", &json!({"inputs": [input("x", &[1, 4], &[0.0; 4])]})).ok();
    let reply = client.get("/v2/health/ready");
    assert_eq!((reply.status, reply.json()), (400, json!({"ready": false})));
    let reply = client.get("/v2/models/bad/ready");
    assert_eq!((reply.status, &reply.json()["ready"]), (400, &json!(false)));
    assert!(client.get("/v2/models/bad").error(404).contains("has no available versions: "));
    assert!(client.get("/v2/models/bad/versions/1").error(503).contains("is not at ready state: "));
    let index = client.post("/v2/repository/index", &json!(null)).ok().json();
    let states: Vec<_> = index.as_array().unwrap().iter().map(|entry| (&entry["name"], &entry["state"])).collect();
    let expected = [("bad", "UNAVAILABLE"), ("empty", "UNAVAILABLE"), ("good", "READY")];
    assert_eq!(
        states,
        expected.map(|(name, state)| (json!(name), json!(state))).iter().map(|(a, b)| (a, b)).collect::<Vec<_>>()
    );
    assert!(index[0]["reason"].as_str().unwrap().contains("(E05"), "{index}");
    assert!(index[1]["reason"].as_str().unwrap().contains("expected a directory per version"), "{index}");
    let ready_index = client.post("/v2/repository/index", &json!({"ready": true})).ok().json();
    assert_eq!(ready_index, json!([{"name": "good", "version": "1", "state": "READY"}]));
}

#[test]
fn regions_have_metrics_of_their_own() {
    let plugins = byoc_test_support::plugin_dir(&["ccompiler"]);
    let dir = plugins.path().display().to_string();
    let cache = tempfile::tempdir().unwrap();
    let cache = cache.path().display().to_string();
    let server =
        serve(&["softmax"], &["--backend", "ccompiler", "--dim", "n=1", "--plugin-dir", &dir, "--cache-dir", &cache]);
    let mut client = server.client();
    let explanation = client.get("/v2/models/softmax/explain").ok().json();
    let region = explanation["regions"][0]["symbol"].as_str().expect("expected a region symbol").to_owned();
    let response = client.infer("softmax", &json!({"inputs": [input("x", &[1, 5], &[1.0; 5])]})).ok().json();
    assert!((response["outputs"][0]["data"][0].as_f64().unwrap() - 0.2).abs() < 1e-6, "{response}");
    let text = String::from_utf8(client.get("/metrics").ok().body).unwrap();
    let line = format!("byoc_region_duration_us_count{{model=\"softmax\",version=\"1\",region=\"{region}\"}} 1");
    assert!(text.lines().any(|actual| actual == line), "{line}\n{text}");
    // A symbolic dimension with separate programs for two sizes.
    let server =
        serve(&["softmax"], &["--backend", "ccompiler", "--dim", "n=1,2", "--plugin-dir", &dir, "--cache-dir", &cache]);
    let mut client = server.client();
    assert_eq!(client.get("/v2/models/softmax/config").ok().json()["max_batch_size"], 4);
    for rows in 1..=4 {
        let response =
            client.infer("softmax", &json!({"inputs": [input("x", &[rows, 5], &vec![1.0; rows * 5])]})).ok().json();
        let data = response["outputs"][0]["data"].as_array().unwrap();
        assert!(
            data.len() == rows * 5 && data.iter().all(|value| (value.as_f64().unwrap() - 0.2).abs() < 1e-6),
            "{response}"
        );
    }
}

#[test]
fn http_2_on_the_same_port() {
    let server = serve(&["relu"], &[]);
    let body = json!({"inputs": [input("x", &[1, 4], &[-1.0, 2.0, -3.0, 4.0])]}).to_string();
    let address = server.http;
    let post = |path: &str, body: &str| {
        let (path, body) = (format!("http://{address}{path}"), body.to_owned());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            let request = hyper::Request::post(path).body(Full::new(Bytes::from(body))).unwrap();
            let response = sender.send_request(request).await.unwrap();
            let status = response.status().as_u16();
            let bytes = response.into_body().collect().await.unwrap().to_bytes();
            (status, serde_json::from_slice::<serde_json::Value>(&bytes).unwrap())
        })
    };
    let (status, answer) = post("/v2/models/relu/infer", &body);
    assert_eq!((status, &answer["outputs"][0]["data"]), (200, &json!([0.0, 2.0, 0.0, 4.0])));
    let (status, answer) = post("/v2/models/relu/infer", "{");
    assert!(status == 400 && answer["error"].as_str().is_some_and(|text| text.contains("(E0804)")), "{answer}");
    assert_eq!(post("/v2/nothing", "").0, 404);
}
