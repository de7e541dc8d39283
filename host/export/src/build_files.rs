//! Build files of an exported project.

use crate::exported::ExportedModel;

/// Returns the Makefile; `sources` are the C files of the model.
pub fn makefile(e: &ExportedModel<'_>, sources: &[String]) -> String {
    let prefix = &e.options.prefix;
    let objects: Vec<String> = sources.iter().map(|source| source.replace(".c", ".o")).collect();
    let link_rules = if e.has_weights_file() { LINKED.replace("@PREFIX@", prefix) } else { String::new() };
    format!(
        "# make: build the checking program; make check: run it; make size: print code, constant and stack frame sizes.\n\
         CC ?= cc\n\
         CFLAGS ?= {}\n\
         SIZE ?= size\n\
         override CFLAGS += -std=c99\n\
         # Objects and libraries with external functions, such as my_conv2d.o.\n\
         EXTRA ?=\n\
         OBJECTS = {}\n\n\
         all: check_model\n\n\
         {link_rules}\
         check_model: main.o $(OBJECTS) $(EXTRA)\n\
         \t$(CC) $(CFLAGS) $(LDFLAGS) -o $@ main.o $(OBJECTS) $(EXTRA) -lm\n\n\
         %.o: %.c {prefix}.h {prefix}_layers.h {prefix}_recorded.h\n\
         \t$(CC) $(CFLAGS) -c -o $@ $<\n\n\
         check: check_model\n\
         \t./check_model\n\n\
         size: override CFLAGS += -fstack-usage\n\
         size: clean $(OBJECTS)\n\
         \t$(SIZE) $(OBJECTS)\n\
         \t@cat *.su | sort -k2 -t'\t' -n -r | head -n 5\n\n\
         clean:\n\
         \trm -f check_model main.o $(OBJECTS) *.su\n\n\
         .PHONY: all check size clean\n",
        flags(e),
        objects.join(" ")
    )
}

/// Makefile rules for linking the weights instead of reading them.
const LINKED: &str = include_str!("linked.mk");

/// Returns the CMakeLists.txt; `sources` are the C files of the model.
pub fn cmake(e: &ExportedModel<'_>, sources: &[String]) -> String {
    let prefix = &e.options.prefix;
    format!(
        "cmake_minimum_required(VERSION 3.10)\n\
         project({prefix} C)\n\
         set(CMAKE_C_STANDARD 99)\n\
         set(CMAKE_C_EXTENSIONS OFF)\n\
         if(NOT CMAKE_BUILD_TYPE)\n  set(CMAKE_BUILD_TYPE Release)\nendif()\n\
         add_library({prefix} STATIC {})\n\
         target_include_directories({prefix} PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}})\n\
         # Objects and libraries with external functions.\n\
         set(EXTRA \"\" CACHE STRING \"further objects and libraries\")\n\
         separate_arguments(FLAGS UNIX_COMMAND \"{}\")\n\
         target_compile_options({prefix} PRIVATE ${{FLAGS}})\n\
         target_link_libraries({prefix} PUBLIC ${{EXTRA}} m)\n\
         add_executable(check_model main.c)\n\
         target_link_libraries(check_model {prefix})\n\
         enable_testing()\n\
         add_test(NAME check_model COMMAND check_model WORKING_DIRECTORY ${{CMAKE_CURRENT_SOURCE_DIR}})\n",
        sources.join(" "),
        flags(e)
    )
}

/// Returns the compiler flags for the processor. If it has vector instructions, the flags permit contracted
/// multiply-adds, and ignore errno and floating-point exceptions.
fn flags(e: &ExportedModel<'_>) -> String {
    let machine = e.options.machine;
    let extra_flags = if machine.vectors { " -ffp-contract=fast -fno-math-errno -fno-trapping-math" } else { "" };
    format!("{}{extra_flags}", machine.flags)
}
