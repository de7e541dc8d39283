//! Models used in the measurements, and the files that contain them.

use crate::Result;
use crate::processes::sibling;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Model with one float32 input.
pub struct Model {
    pub name: &'static str,
    pub file: PathBuf,
    pub input: String,
    pub shape: Vec<i64>,
}

impl Model {
    /// Returns random data of the input's size.
    pub fn data(&self) -> Vec<u8> {
        let count = self.shape.iter().product::<i64>() as usize;
        byoc::io::random::tensor(byoc::DType::F32, &[count], 1).bytes().to_vec()
    }
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the directory for files created by measurements.
pub fn work_dir() -> Result<PathBuf> {
    let executable = std::env::current_exe().map_err(|e| e.to_string())?;
    let target = executable.parent().and_then(Path::parent).ok_or("expected the executable in a target directory")?;
    let dir = target.join("serve-bench");
    std::fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
    Ok(dir)
}

/// Returns two models with a single ReLU each, for inputs of 16 bytes and of the size of a ResNet-50 image.
pub fn relus() -> Result<Vec<Model>> {
    let dir = work_dir()?;
    let relu = |name: &'static str, shape: Vec<i64>| -> Result<Model> {
        let file = dir.join(format!("{name}.relay"));
        let dims: Vec<String> = shape.iter().map(i64::to_string).collect();
        let text = format!(
            "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[({}), float32]) {{ nn.relu(%x) }}\n",
            dims.join(", ")
        );
        std::fs::write(&file, text).map_err(|e| e.to_string())?;
        Ok(Model { name, file, input: "x".into(), shape })
    };
    Ok(vec![relu("small", vec![1, 4])?, relu("picture", vec![1, 3, 224, 224])?])
}

/// Returns ResNet-50 from `byoc zoo`, and the digits network.
pub fn networks() -> Result<Vec<Model>> {
    let resnet_file = work_dir()?.join("resnet50.onnx");
    if !resnet_file.is_file() {
        let status = Command::new(sibling("byoc")?).args(["zoo", "resnet50", "-o"]).arg(&resnet_file).status();
        if !status.is_ok_and(|status| status.success()) {
            return Err("byoc zoo resnet50 failed".into());
        }
    }
    let digits = workspace().join("tests/digits/digits.onnx");
    [("digits", digits), ("resnet50", resnet_file)]
        .into_iter()
        .map(|(name, file)| {
            let signature = byoc::frontend::signature(&file).map_err(|e| format!("{}: {e:?}", file.display()))?;
            let port = signature.inputs.into_iter().next().ok_or("expected a model with an input")?;
            let dims = port.dims.ok_or("expected an input of known rank, found one of unknown rank")?;
            let shape = dims.iter().map(|dim| dim.fixed().map_or(1, |size| size as i64)).collect();
            Ok(Model { name, file, input: port.name, shape })
        })
        .collect()
}

/// Returns the `NAME=FILE` arguments that serve each model under its name.
pub fn model_flags(models: &[Model]) -> Vec<String> {
    models.iter().map(|model| format!("{}={}", model.name, model.file.display())).collect()
}

/// Returns the flags that select the dnnl backend from the directory of the current executable.
pub fn backend() -> Result<Vec<String>> {
    let plugin = sibling("libbyoc_dnnl.so")?;
    let dir = plugin.parent().ok_or("expected the plugin in a directory")?;
    Ok(vec!["--backend".into(), "dnnl".into(), "--plugin-dir".into(), dir.display().to_string()])
}
