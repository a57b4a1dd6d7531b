"""Steps that prepare features as the papers do: scattering, preconditioning on public images."""
