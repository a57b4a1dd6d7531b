"""What a client is called unless a spec says; here, since it is asked where torch is not."""


def client_name(number: int) -> str:
    return f"client-{number:04d}"
