"""What is known while a graph is traced: the thread, who watches, module scopes, source locations, ranks."""
