package doctor

// Probe is probe, for tests that import what imports this package.
var Probe = probe
