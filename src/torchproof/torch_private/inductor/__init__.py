"""Private parts of Inductor: backends, code generation, caches and AOTInductor."""
