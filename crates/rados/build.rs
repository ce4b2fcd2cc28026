//! Generates the bindings to librados, if the feature `librados` asks for them.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "librados")]
    bindings();
}

#[cfg(feature = "librados")]
fn bindings() {
    use std::path::PathBuf;

    println!("cargo::rustc-link-lib=rados");
    let bindings = bindgen::Builder::default()
        .header_contents("wrapper.h", "#include <rados/librados.h>\n")
        .allowlist_function("rados_.*")
        .allowlist_var("LIBRADOS_.*")
        .generate_comments(false)
        .layout_tests(false)
        .generate()
        .expect("rados/librados.h is read; install librados-dev and libclang-dev");
    let folder = std::env::var_os("OUT_DIR").expect("cargo names the folder for what is generated");
    let file = PathBuf::from(folder).join("librados.rs");
    bindings.write_to_file(file).expect("the bindings are written into cargo's folder");
}
