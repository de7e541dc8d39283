//! Tests of repositories: versions, load and unload, reload with requests in progress.

use crate::client::{Client, call, input};
use crate::models::{model, serve, serve_repository, write};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use byoc_serve::proto::{
    ModelRepositoryParameter, RepositoryModelLoadResponse, RepositoryModelRequest, RepositoryModelUnloadResponse,
    RepositoryParameterChoice,
};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

fn versions(client: &mut Client, name: &str) -> Value {
    client.get(&format!("/v2/models/{name}")).ok().json()["versions"].clone()
}

fn add(value: u32) -> String {
    let header = model("relu").lines().next().unwrap().to_owned();
    format!("{header}\ndef @main(%x: Tensor[(n, 4), float32]) {{ add(%x, {value}f) }}\n")
}

#[test]
fn control_is_off_unless_allowed() {
    let server = serve(&["relu"], &[]);
    let mut client = server.client();
    for verb in ["load", "unload"] {
        let message = client.post(&format!("/v2/repository/models/relu/{verb}"), &json!({})).error(503);
        assert!(message.contains("--allow-control"), "{message}");
    }
    // A large request is not decoded, and has a response all the same.
    let items = "[],".repeat(1 << 20);
    let large = format!(r#"{{"parameters":{{"a":[{items}0]}}}}"#);
    client.request("POST", "/v2/repository/models/relu/load", &[], large.as_bytes()).error(503);
    let request = RepositoryModelRequest { model_name: "relu".into(), ..RepositoryModelRequest::default() };
    assert_eq!(
        call::<_, RepositoryModelUnloadResponse>(server.grpc, "RepositoryModelUnload", &request).unwrap_err().code,
        14
    );
    client.get("/v2/models/relu/ready").ok();
}

#[test]
fn versions_follow_the_policy() {
    let dir = tempfile::tempdir().unwrap();
    for (name, policy) in [
        ("latest", ""),
        ("two", "version_policy { latest { num_versions: 2 } }"),
        ("all", "version_policy: { all { } }"),
        // A version that is named twice is loaded once.
        ("one", "version_policy { specific { versions: [1, 1] } }"),
    ] {
        for (version, value) in [("1", 1), ("2", 2), ("10", 10)] {
            let path = dir.path().join(name).join(version);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("model.relay"), add(value)).unwrap();
        }
        // Directories whose names are not version numbers.
        for other in ["0", "03", "v4", "-5", "configs"] {
            write(&dir.path().join(name).join(other).join("model.relay"), "relu");
        }
        std::fs::write(dir.path().join(name).join("config.pbtxt"), policy).unwrap();
    }
    let server = serve_repository(dir, &["--allow-control"]);
    let mut client = server.client();
    for (name, expected) in [
        ("latest", json!(["10"])),
        ("two", json!(["2", "10"])),
        ("all", json!(["1", "2", "10"])),
        ("one", json!(["1"])),
    ] {
        assert_eq!(versions(&mut client, name), expected, "{name}");
    }
    let request = json!({"inputs": [input("x", &[1, 4], &[0.0; 4])]});
    for (path, version, value) in [("all", "10", 10.0), ("all/versions/2", "2", 2.0), ("one", "1", 1.0)] {
        let response = client.post(&format!("/v2/models/{path}/infer"), &request).ok().json();
        assert_eq!((&response["model_version"], &response["outputs"][0]["data"][0]), (&json!(version), &json!(value)));
    }
    for version in ["3", "03", "0"] {
        client.get(&format!("/v2/models/all/versions/{version}")).error(404);
    }
    // A model that is added later is listed by name, and served once it is loaded.
    write(&server.path("later/1/model.relay"), "relu");
    let index = client.post("/v2/repository/index", &json!({})).ok().json();
    assert!(index.as_array().unwrap().contains(&json!({"name": "later"})), "{index}");
    client.get("/v2/models/later").error(404);
    client.post("/v2/repository/models/later/load", &json!(null)).ok();
    assert_eq!(versions(&mut client, "later"), json!(["1"]));
    // A reload serves the added version, and unloads the version that the policy no longer selects.
    write(&server.path("latest/11/model.relay"), "relu");
    client.post("/v2/repository/models/latest/load", &json!({})).ok();
    assert_eq!(versions(&mut client, "latest"), json!(["11"]));
    assert!(client.get("/v2/models/latest/versions/10").error(503).contains("unloaded"));
    client.get("/v2/health/ready").ok();
}

#[test]
fn load_and_unload_in_both_dialects() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("m/1/model.relay"), "relu");
    let server = serve_repository(dir, &["--allow-control"]);
    let mut client = server.client();
    let unload = json!({"parameters": {"unload_dependents": false}});
    assert_eq!(
        client.post("/v2/repository/models/m/unload", &unload).ok().json(),
        json!({"name": "m", "unload": true})
    );
    assert!(client.get("/v2/models/m/versions/1").error(503).contains("unloaded"));
    assert!(client.get("/v2/models/m").error(404).contains("has no available versions: unloaded"));
    // An unloaded model does not affect the readiness of the server.
    client.get("/v2/health/ready").ok();
    let index = client.post("/v2/repository/index", &json!({})).ok().json();
    assert_eq!(index, json!([{"name": "m", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}]));
    // KServe's client sends the name in the first field, Triton's in the second field.
    for (load_name, unload_name) in [("m", ""), ("", "m")] {
        let request = RepositoryModelRequest {
            repository_name: load_name.into(),
            model_name: unload_name.into(),
            ..RepositoryModelRequest::default()
        };
        let response: RepositoryModelLoadResponse = call(server.grpc, "RepositoryModelLoad", &request).unwrap();
        assert_eq!((response.model_name.as_str(), response.is_loaded), ("m", true));
        client.get("/v2/models/m/ready").ok();
        call::<_, RepositoryModelUnloadResponse>(server.grpc, "RepositoryModelUnload", &request).unwrap();
    }
    for name in ["nope", "..", "a%2fb", "%2e%2e%2fm"] {
        for verb in ["load", "unload"] {
            let reply = client.post(&format!("/v2/repository/models/{name}/{verb}"), &json!({}));
            assert!([400, 404].contains(&reply.status), "{name}: {}", reply.status);
            reply.error(reply.status);
        }
    }
    for (body, expected) in [
        (json!({"parameters": {"config": 3}}), "expected a string, found 3"),
        (json!({"parameters": {"other": "x"}}), "found 'other'"),
        (json!({"parameters": {"config": "{"}}), "the model configuration is not valid JSON"),
        (json!({"parameters": {"config": "{\"max_batch_size\": -1}"}}), "expected an integer >= 0, found -1"),
        (json!({"parameters": {"config": "{}", "file:1/model.onnx": "%"}}), "not valid base64"),
        (json!({"parameters": {"file:1/model.onnx": ""}}), "expected the parameter 'config' along with the files"),
        (json!({"parameters": {"config": "{}", "file:../model.onnx": ""}}), "expected files file:VERSION/"),
        (json!({"parameters": {"config": "{}", "file:1/model.onnx": ""}}), "failed to load 'm' version 1"),
        (json!([1]), "parse"),
    ] {
        let message = client.post("/v2/repository/models/m/load", &body).error(400);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn a_client_sends_a_model_and_its_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("relu.relay");
    write(&source, "relu");
    let session = byoc::Session::builder().threads(1).build().unwrap();
    let options = byoc::CompileOptions::new().open_unbound_dims();
    let artifact = byoc::Compilation::new(&session, source, &options).unwrap().to_bytes().unwrap();
    let server = serve_repository(tempfile::tempdir().unwrap(), &["--allow-control"]);
    let mut client = server.client();
    let config = json!({"max_batch_size": 16, "dynamic_batching": {"max_queue_delay_microseconds": "100"}}).to_string();
    let body = json!({"parameters": {"config": config, "file:7/model.byoc": STANDARD.encode(&artifact)}});
    client.post("/v2/repository/models/sent/load", &body).ok();
    let response = client.infer("sent", &json!({"inputs": [input("x", &[1, 4], &[-1.0; 4])]})).ok().json();
    assert_eq!((&response["model_version"], &response["outputs"][0]["data"][0]), (&json!("7"), &json!(0.0)));
    let served_config = client.get("/v2/models/sent/config").ok().json();
    assert_eq!(served_config["max_batch_size"], 16);
    // The server accepts a configuration that it has returned.
    let mut request = RepositoryModelRequest { model_name: "again".into(), ..RepositoryModelRequest::default() };
    let mut own_config = served_config;
    own_config["name"] = json!("again");
    let param = |parameter_choice| ModelRepositoryParameter { choice: Some(parameter_choice) };
    request.parameters.insert("config".into(), param(RepositoryParameterChoice::Text(own_config.to_string())));
    request.parameters.insert("file:1/model.byoc".into(), param(RepositoryParameterChoice::Bytes(artifact.into())));
    call::<_, RepositoryModelLoadResponse>(server.grpc, "RepositoryModelLoad", &request).unwrap();
    client.get("/v2/models/again/ready").ok();
}

#[test]
fn a_failed_reload_keeps_the_old_version() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m/1/model.relay");
    write(&path, "relu");
    let server = serve_repository(dir, &["--allow-control"]);
    let mut client = server.client();
    let request = json!({"inputs": [input("x", &[1, 4], &[0.0; 4])]});
    let path = server.path("m/1/model.relay");
    for invalid_model in
        ["garbage", "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(n, 4), float32]) { no_such_op(%x) }"]
    {
        std::fs::write(&path, invalid_model).unwrap();
        let message = client.post("/v2/repository/models/m/load", &json!({})).error(400);
        assert!(message.starts_with("failed to load 'm' version 1"), "{message}");
        client.infer("m", &request).ok();
        client.get("/v2/health/ready").ok();
    }
    std::fs::write(server.path("m/config.pbtxt"), "max_batch_size: x").unwrap();
    assert!(
        client.post("/v2/repository/models/m/load", &json!({})).error(400).contains("config.pbtxt: max_batch_size")
    );
    client.infer("m", &request).ok();
    std::fs::remove_file(server.path("m/config.pbtxt")).unwrap();
    std::fs::write(&path, add(5)).unwrap();
    client.post("/v2/repository/models/m/load", &json!({})).ok();
    assert_eq!(client.infer("m", &request).ok().json()["outputs"][0]["data"][0], 5.0);
    // Statistics persist across reloads.
    assert_eq!(client.get("/v2/models/m/stats").ok().json()["model_stats"][0]["inference_count"], 4);
}

#[test]
fn configurations_that_do_not_fit_are_load_errors() {
    let cases = [
        (
            "relu",
            "max_batch_size: 2 input { name: \"x\" data_type: TYPE_FP32 dims: [-1, 4] }",
            "expected dims [4] as in the model, without the batch dimension",
        ),
        ("relu", "input { name: \"y\" dims: 4 }", "expected an input of the model, found 'y'"),
        (
            "relu",
            "max_batch_size: 2 input { name: \"x\" data_type: TYPE_INT8 dims: 4 }",
            "expected data_type TYPE_FP32 as in the model, found TYPE_INT8",
        ),
        ("fixed", "max_batch_size: 2", "without an unknown first dimension"),
        ("relu", "name: \"other\"", "name: expected 'm', the name of the directory, found 'other'"),
        (
            "relu",
            "platform: \"tensorrt_plan\"",
            "platform: expected 'byoc' or 'onnxruntime_onnx', found 'tensorrt_plan'",
        ),
        ("relu", "default_model_filename: \"../../x\"", "expected a file name"),
        ("relu", "default_model_filename: \"x.onnx\"", "expected one of x.onnx in"),
        ("relu", "version_policy { specific { versions: 3 } }", "expected one of the versions [1], found 3"),
        ("relu", "dynamic_batching { } max_batch_size: 0", "expected max_batch_size > 0, found 0"),
        (
            "relu",
            "max_batch_size: 2 dynamic_batching { preferred_batch_size: 4 }",
            "expected at most max_batch_size (2), found 4",
        ),
        ("relu", "instance_group { count: 100 }", "expected at most 64 instances, found 100"),
        (
            "relu",
            "output { name: \"output_0\" dims: [-1, 4] label_filename: \"../labels\" }",
            "expected a label file in the model's directory",
        ),
        (
            "relu",
            "output { name: \"output_0\" dims: [-1, 4] label_filename: \"secret\" }",
            "which is outside the directory",
        ),
        (
            "relu",
            "model_warmup { name: \"w\" batch_size: 1 inputs { key: \"x\" value { data_type: TYPE_FP32 dims: [4] \
             input_data_file: \"secret\" } } }",
            "which is outside the directory",
        ),
        ("relu", "sequence_batching { }", "does not support sequence_batching"),
    ];
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("m/1/model.relay"), "relu");
    std::fs::create_dir(dir.path().join("m/warmup")).unwrap();
    std::fs::write(dir.path().join("secret"), [b'x'; 16]).unwrap();
    std::os::unix::fs::symlink("../secret", dir.path().join("m/secret")).unwrap();
    std::os::unix::fs::symlink("../../secret", dir.path().join("m/warmup/secret")).unwrap();
    let server = serve_repository(dir, &["--allow-control"]);
    let mut client = server.client();
    for (name, config, expected) in cases {
        write(&server.path("m/1/model.relay"), name);
        std::fs::write(server.path("m/config.pbtxt"), config).unwrap();
        let message = client.post("/v2/repository/models/m/load", &json!({})).error(400);
        assert!(message.contains(expected), "{config}: {message}");
    }
}

#[test]
fn a_configuration_shapes_the_interface() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("m/1/net.relay"), "copy_FP32");
    // The layout of a mounted ConfigMap: links to files inside.
    std::fs::create_dir(dir.path().join("m/data")).unwrap();
    std::fs::write(dir.path().join("m/data/labels.txt"), "zero\none\ntwo\nthree\n").unwrap();
    std::os::unix::fs::symlink("data/labels.txt", dir.path().join("m/labels.txt")).unwrap();
    let config = r#"
        backend: "onnxruntime"
        default_model_filename: "net.relay"
        max_batch_size: 8
        input { name: "x" data_type: TYPE_FP32 dims: [ 1, 2 ] reshape { shape: [ 2 ] } }
        output { name: "output_0" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: [ 4 ] } label_filename: "labels.txt" }
        instance_group { count: 2 kind: KIND_CPU }
        model_warmup { name: "w" batch_size: 2 count: 2 inputs { key: "x" value { data_type: TYPE_FP32 dims: [1, 2] zero_data: true } } }
        parameters { key: "intra_op_thread_count" value { string_value: "1" } }
    "#;
    std::fs::write(dir.path().join("m/config.pbtxt"), config).unwrap();
    let server = serve_repository(dir, &[]);
    let mut client = server.client();
    let metadata = client.get("/v2/models/m").ok().json();
    assert_eq!(
        (&metadata["platform"], &metadata["inputs"][0]["shape"]),
        (&json!("onnxruntime_onnx"), &json!([-1, 1, 2]))
    );
    assert_eq!(metadata["outputs"][0]["shape"], json!([-1, 2, 2]));
    let response = client.infer("m", &json!({"inputs": [input("x", &[2, 1, 2], &[1.0, 2.0, 3.0, 4.0])]})).ok().json();
    assert_eq!(response["outputs"][0]["shape"], json!([2, 2, 2]));
    assert_eq!(response["outputs"][0]["data"], json!([1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0]));
    let classes = json!({"inputs": [input("x", &[1, 1, 2], &[1.0, 2.0])], "outputs": [{"name": "output_0", "parameters": {"classification": 1}}]});
    let response = client.infer("m", &classes).ok().json();
    assert_eq!(
        (&response["outputs"][0]["shape"], &response["outputs"][0]["data"]),
        (&json!([1, 1]), &json!(["2.000000:1:one"]))
    );
}

#[test]
fn a_reload_under_load_loses_no_request() {
    const RELOADS: u32 = 100;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m/1");
    std::fs::create_dir_all(&path).unwrap();
    std::fs::write(path.join("model.relay"), add(0)).unwrap();
    let server = serve_repository(dir, &["--allow-control"]);
    let (is_ended, served_config) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut client = server.client();
                let request = json!({"inputs": [input("x", &[1, 4], &[0.5; 4])]});
                while !is_ended.load(Ordering::Relaxed) {
                    let response = client.infer("m", &request).ok().json();
                    let value = response["outputs"][0]["data"][0].as_f64().unwrap() - 0.5;
                    assert!(
                        value >= 0.0 && value <= f64::from(RELOADS) && value.fract() == 0.0,
                        "expected an integer from 0 to {RELOADS}, found {value}"
                    );
                    served_config.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut client = server.client();
        for value in 1..=RELOADS {
            std::fs::write(server.path("m/1/model.relay"), add(value)).unwrap();
            client.post("/v2/repository/models/m/load", &json!({})).ok();
            let response = client.infer("m", &json!({"inputs": [input("x", &[1, 4], &[0.0; 4])]})).ok().json();
            assert_eq!(response["outputs"][0]["data"][0], f64::from(value));
        }
        is_ended.store(true, Ordering::Relaxed);
    });
    assert!(served_config.load(Ordering::Relaxed) > 0);
}

#[test]
fn unload_while_requests_run() {
    let server = serve(&["slow"], &["--allow-control"]);
    let mut clients: Vec<Client> = (0..4).map(|_| server.client()).collect();
    for client in &mut clients {
        let request = json!({"inputs": [input("x", &[1, 4], &[3.0; 4])]});
        client.send("POST", "/v2/models/slow/infer", &[], request.to_string().as_bytes());
    }
    // The first response shows that requests are in progress.
    clients[0].receive().ok();
    server.client().post("/v2/repository/models/slow/unload", &json!({})).ok();
    for client in &mut clients[1..] {
        let reply = client.receive();
        if reply.status == 200 {
            assert_eq!(reply.json()["outputs"][0]["data"][0], 3.0);
        } else {
            // The request arrived after the model was unloaded.
            reply.error(404);
        }
    }
    server.client().post("/v2/repository/models/slow/load", &json!({})).ok();
    server.client().infer("slow", &json!({"inputs": [input("x", &[1, 4], &[3.0; 4])]})).ok();
}
